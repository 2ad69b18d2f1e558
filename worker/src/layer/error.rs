//! Errors of plain tensor work: the stages before and after the recorded program (scaling, masks, look-up ids).

use crate::error::{OpError, OpErrorKind};
use tch::TchError;

/// Turns libtorch's refusal of an unrecorded stage into an [`OpError`] that names the stage.
pub(crate) fn refused(stage: &'static str) -> impl Fn(TchError) -> OpError {
    move |source| OpError { op: stage, place: "unrecorded".to_owned(), kind: Box::new(OpErrorKind::Torch(source)) }
}
