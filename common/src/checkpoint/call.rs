//! Arguments of a call, as `torch.save` writes `((tensors…), {})`: the sample inputs inside PT2 archives.

use super::{
    element::Element,
    item::rebuild_tensor,
    pickle::{Pickler, Protocol},
    zip::Builder,
};

const ALIGN_BYTES: u64 = 64;

/// A tensor that is given: element type, sizes, row-major bytes.
pub type Argument<'a> = (Element, &'a [u64], &'a [u8]);

/// The whole file; `torch.load(weights_only=True)` reads it.
pub fn arguments(tensors: &[Argument<'_>]) -> Vec<u8> {
    let mut pickler = Pickler::new(Protocol::Two);
    pickler.tuple(|out| {
        out.tuple(|out| {
            for (key, (element, sizes, _)) in tensors.iter().enumerate() {
                rebuild_tensor(out, &key.to_string(), *element, sizes);
            }
        });
        out.empty_dict();
    });
    let pickle = pickler.finish();
    let mut zip = Builder::new(0);
    let mut file = Vec::new();
    for (name, bytes) in [("data.pkl", pickle.as_slice()), ("byteorder", b"little"), ("version", b"3\n")] {
        file.extend(zip.small(&format!("archive/{name}"), bytes));
    }
    for (key, (_, _, bytes)) in tensors.iter().enumerate() {
        file.extend(zip.record(&format!("archive/data/{key}"), bytes, ALIGN_BYTES));
        file.extend_from_slice(bytes);
    }
    file.extend(zip.finish());
    file
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::{TensorDType, zip};

    #[test]
    fn the_records_hold_what_was_given() {
        let file = arguments(&[(TensorDType::F32.into(), &[1, 2], &[7; 8]), (TensorDType::I64.into(), &[0], &[])]);
        let records = zip::records(&file).unwrap();
        let bytes = |name: &str| {
            let record = records.iter().find(|record| record.name == name).unwrap();
            assert!(record.is_whole(&file));
            &file[record.at.clone()]
        };
        assert_eq!(bytes("archive/data/0"), [7; 8]);
        assert!(bytes("archive/data/1").is_empty());
        let pickle = String::from_utf8_lossy(bytes("archive/data.pkl")).into_owned();
        assert!(
            pickle.contains("FloatStorage") && pickle.contains("LongStorage") && pickle.ends_with("t}t."),
            "{pickle}"
        );
        assert!(zip::records(&file[..file.len() - 1]).is_err());
        assert!(zip::records(&[]).is_err());
    }
}
