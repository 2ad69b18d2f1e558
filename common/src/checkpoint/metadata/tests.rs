use super::*;
use crate::checkpoint::table::TensorDType;

/// One tensor by one rank, and a value.
fn metadata() -> Metadata {
    let place = |offset| StoredPlace { file: RelPath::own("__0_0.distcp"), offset, length: 8, transforms: Vec::new() };
    let chunk = StoredChunk { region: Region::whole(&[2]), place: place(0) };
    let entry = TensorEntry { dtype: TensorDType::F32.torch().to_owned(), shape: vec![2], chunks: vec![chunk] };
    Metadata {
        tensors: [("w".to_owned(), entry)].into(),
        values: [("note".to_owned(), place(8))].into(),
        ..Metadata::default()
    }
}

fn place_of(bytes: &[u8], text: &str) -> usize {
    bytes.windows(text.len()).position(|window| window == text.as_bytes()).unwrap()
}

#[test]
fn an_attribute_that_a_later_pytorch_adds_is_passed_over() {
    let mut bytes = metadata().to_bytes("save");
    let plain = Metadata::parse(&bytes).unwrap();
    // The fields are pairs behind a mark; the name of one is a short text: its opcode, its length, the text.
    for known in ["version", "relative_path", "chunks"] {
        let at = place_of(&bytes, known) - 2;
        assert_eq!(bytes[at..at + 2], [0x8c, known.len() as u8], "{known}");
        drop(bytes.splice(at..at, *b"\x8c\x05later(K\x01K\x02t"));
    }
    let later = Metadata::parse(&bytes).unwrap();
    assert_eq!((&later.tensors, &later.values), (&plain.tensors, &plain.values));
    assert_eq!(later.tensors["w"].chunks[0].place.length, 8);
}

#[test]
fn an_item_that_was_transformed_still_says_so() {
    let mut packed = metadata();
    packed.values.get_mut("note").unwrap().transforms = vec!["stream.zstd/1".to_owned(), "other".to_owned()];
    assert_eq!(Metadata::parse(&packed.to_bytes("save")).unwrap().values, packed.values);
}

#[test]
fn entries_that_share_one_long_text_or_size_do_not_multiply_it() {
    // 20,000 values with one text of 20 kB between them are 400 MB when each has its own. A path is never so long; a transformation may be.
    let name = "n".repeat(20_000);
    let mut many = metadata();
    let place = StoredPlace { transforms: vec![name], ..many.values["note"].clone() };
    many.values = (0..20_000).map(|number| (format!("{number}"), place.clone())).collect();
    let bytes = many.to_bytes("save");
    assert!(bytes.len() < 3_000_000, "{}", bytes.len());
    let error = Metadata::parse(&bytes).unwrap_err().to_string();
    assert!(error.contains("transform_descriptors"), "{error}");
}
