//! Files that are not what they should be: read all the same, or refused in a sentence with the place.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use super::{Place, data};

#[test]
fn files_without_data_or_of_other_bytes_are_refused_with_the_place() {
    let text = data().text();
    let latin: Vec<u8> =
        data().with("k", |_, _| "cafE".into()).text().bytes().map(|b| if b == b'E' { 0xe9 } else { b }).collect();
    let wide: Vec<u8> = [0xff, 0xfe].into_iter().chain(text.encode_utf16().flat_map(u16::to_le_bytes)).collect();
    let category = ("data.rows", r#"features = ["a", { column = "k", kind = "category" }]"#);
    let cut = |at: usize, with: &str| [&text[..at], with, &text[at..]].concat().into_bytes();
    for (bytes, expected) in [
        (Vec::new(), "data.csv: the file is empty; expected at least one data row"),
        (b"\n\r\n\n".to_vec(), "data.csv: the file is empty"),
        (b"id,a,b,c,y,z\n".to_vec(), "data.csv: the file holds a header and nothing else"),
        (wide, "it is UTF-16; convert it"),
        (b"PAR1\0\0\n".to_vec(), "it is a Parquet file; set data.format = \"parquet\""),
        (b"\x1f\x8b\x08\n".to_vec(), "it is packed by gzip; unpack it"),
        (text.replacen("a,b,c", "a,c,d", 1).into_bytes(), "has no column \"b\""),
        (cut(3_000, "\0"), "expected a number"),
        (cut(3_000, "x"), "data.csv:"),
    ] {
        let (code, said) = Place::of_text(&bytes, &[]).refusal();
        assert_eq!(code, 3, "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let twice = text.replacen("a,b,c", "a,a,c", 1);
    let (code, said) = Place::of_text(twice.as_bytes(), &[("data.rows", "features = [\"a\", \"c\"]")]).refusal();
    assert_eq!(code, 3);
    assert!(said.contains("the header names column \"a\" twice"), "{said}");
    let (code, said) = Place::of_text(&latin, &[category]).refusal();
    assert_eq!(code, 3);
    assert!(
        said.contains("data.csv:2, column \"k\": found bytes that are not UTF-8") && said.contains("iconv"),
        "{said}"
    );
}

#[test]
fn marks_line_ends_and_a_cut_last_line_change_nothing() {
    let text = data().text();
    let error = |bytes: &[u8]| {
        let place = Place::of_text(bytes, &[("train", "epochs = 2")]);
        place.train(&[]);
        place.metrics().split["test"].mae
    };
    let expected = error(text.as_bytes());
    assert_eq!(error(format!("\u{feff}{}", text.replace('\n', "\r\n")).as_bytes()), expected);
    assert_eq!(error(text.trim_end().as_bytes()), expected);
    assert_eq!(error(text.replace(',', ";").as_bytes()), expected);
}

#[test]
fn columns_may_have_any_name() {
    let odd = "a \"x\"\nb ☃ 😀, c";
    let quoted = format!("\"{}\"", odd.replace('"', "\"\""));
    let text = data().text().replacen("id,a,b,c,y,z", &format!("id,{quoted},b,c,y@0.5,row_id"), 1);
    let keys = "features = ['''a \"x\"\nb ☃ 😀, c''', \"b\"]\ntargets = [\"y@0.5\", \"row_id\"]";
    let place = Place::of_text(text.as_bytes(), &[("data.rows", keys), ("train", "loss = \"quantile\"")]);
    place.train(&[]);
    place.is_sensible();
    assert_eq!(place.meta().features[0].name, odd);
    let (found, _) = place.evaluate("data.csv");
    assert_eq!(found.rows, 240);
    let words = ["predict", "latest", "--data", "data.csv", "--out", "answer.parquet", "-q"];
    let output = place.command(&words).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

const WINDOWS: &str =
    "[data.windows]\nentity = \"e\"\ntime = \"t\"\nsteps = 6\nstep_s = 3600\ntarget = \"v\"\ninputs = [\"v\"]\n";

/// Two entities and so many hours, in some order.
fn hours(count: i64, order: impl Fn(&mut Vec<String>)) -> String {
    let mut lines: Vec<String> = (0..count)
        .flat_map(|hour| ["A", "B"].map(|e| format!("{e},{},{:.4}", hour * 3600, (hour as f64 / 6.0).sin())))
        .collect();
    order(&mut lines);
    format!("e,t,v\n{}\n", lines.join("\n"))
}

fn windows(text: &str) -> Place {
    let place = Place::of_text(text.as_bytes(), &[("train", "epochs = 2")]);
    let toml = std::fs::read_to_string(place.path().join("strange.toml")).unwrap();
    let rows = toml.find("[data.rows]").unwrap();
    let split = toml.find("[data.split]").unwrap();
    let toml =
        [&toml[..rows], WINDOWS, &toml[split..].replace("kind = \"random\"", "kind = \"chronological\"")].concat();
    place.write("strange.toml", toml.as_bytes());
    place
}

#[test]
fn times_may_come_in_any_order_and_those_that_make_no_window_are_refused() {
    let error = |order: fn(&mut Vec<String>)| {
        let place = windows(&hours(240, order));
        place.train(&[]);
        place.metrics().split["test"].mae
    };
    assert_eq!(
        error(|_| ()),
        error(|lines| lines.sort_by_key(|line| line.len() * 7 + line.bytes().map(usize::from).sum::<usize>() % 5))
    );
    assert_eq!(error(|_| ()), error(|lines| lines.reverse()));
    for (text, expected) in [
        (hours(8, |_| ()), "no sample can be made of 16 rows"),
        (hours(240, |lines| *lines = vec![lines[0].clone(); 480]), "no sample can be made"),
        (hours(240, |lines| lines[5] = "A,253402214400,1.0".into()), "steps of 3600 s for 2 entities"),
        (hours(240, |lines| lines[5] = "A,yesterday,1.0".into()), "data.csv:7, column \"t\": found \"yesterday\""),
    ] {
        let (code, said) = windows(&text).refusal();
        assert_eq!(code, 3, "{said}");
        assert!(said.contains(expected), "{said}");
    }
    let (_, said) = windows(&hours(6, |_| ())).refusal();
    assert!(said.contains("a sample needs 2 windows of 6 steps of 3600 s in a row"), "{said}");
}
