//! The batches of an Arrow stream from elsewhere. The format's own reader panics where offsets in a damaged stream lead nowhere;
//! here that is an error like any other.

use arrow_array::RecordBatch;
use arrow_ipc::reader::StreamReader;
use arrow_schema::ArrowError;
use std::{
    io::Read,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// The batches, in order. Nothing comes behind an error.
pub struct Batches<R: Read>(Option<StreamReader<R>>);

impl<R: Read> Batches<R> {
    /// Reads the schema.
    pub fn open(input: R) -> Result<Self, ArrowError> {
        guarded(|| StreamReader::try_new(input, None)).map(|reader| Self(Some(reader)))
    }
}

impl<R: Read> Iterator for Batches<R> {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut reader = self.0.take()?;
        let batch = guarded(|| reader.next().transpose()).transpose()?;
        // What a panic left behind is not looked at again.
        self.0 = batch.is_ok().then_some(reader);
        Some(batch)
    }
}

fn guarded<T>(read: impl FnOnce() -> Result<T, ArrowError>) -> Result<T, ArrowError> {
    catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
        Err(ArrowError::IpcError("it is damaged: what it says of its own buffers does not fit them".to_owned()))
    })
}
