//! Guesses on awkward tables, typed as files.

use super::*;
use std::path::PathBuf;

/// A table in a file, and what is proposed for it.
struct Bench {
    dir: tempfile::TempDir,
    files: Vec<PathBuf>,
}

impl Bench {
    fn new(name: &str, text: &[u8]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(name);
        std::fs::write(&file, text).unwrap();
        Self { dir, files: vec![file] }
    }

    fn sample(&self) -> TableSample {
        let missing: Vec<String> =
            enn_common::config::resolve::MISSING_DEFAULT.iter().map(|word| (*word).to_owned()).collect();
        sample(&TableFiles { files: &self.files, format: None, sheet: None, missing: &missing, missing_in_typed: &[] })
            .unwrap()
    }

    fn error(&self) -> String {
        sample(&TableFiles { files: &self.files, format: None, sheet: None, missing: &[], missing_in_typed: &[] })
            .unwrap_err()
            .to_string()
    }

    fn propose(&self, choices: &ColumnChoices) -> Result<Proposal, SurveyError> {
        propose(&self.sample(), choices)
    }

    fn text(&self, choices: &ColumnChoices) -> String {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        let paths = DocumentPaths {
            name: "t",
            files: &files,
            format: None,
            sheet: None,
            schema: None,
            command: "enn new t.csv",
        };
        document(&self.propose(choices).unwrap(), &paths)
    }
}

fn target(name: &str) -> ColumnChoices {
    ColumnChoices { targets: vec![name.to_owned()], ..ColumnChoices::default() }
}

/// Lines of a table with a header, a row for each number.
fn table(header: &str, rows: usize, row: impl Fn(usize) -> String) -> Vec<u8> {
    let mut text = format!("{header}\n");
    (0..rows).for_each(|number| text += &format!("{}\n", row(number)));
    text.into_bytes()
}

/// A number without a pattern, the same each time.
fn noise(number: usize) -> f64 {
    let mixed = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f64 / 1000.0
}

fn role(proposal: &Proposal, name: &str) -> ColumnRole {
    proposal.columns.iter().find(|column| column.guess.name == name).unwrap().role.clone()
}

fn reason(proposal: &Proposal, name: &str) -> String {
    match role(proposal, name) {
        ColumnRole::LeftOut(why) => why,
        other => panic!("{name} is {other:?}"),
    }
}

fn kinds(bench: &Bench) -> Vec<(String, Option<GuessedKind>)> {
    bench.sample().guesses().into_iter().map(|guess| (guess.name, guess.kind)).collect()
}

/// Resolves a document as `enn train` does.
fn resolved(text: &str) -> enn_common::config::RunConfig {
    let raw = enn_common::config::RawConfig::parse(text, std::path::Path::new("/t/t.toml")).unwrap();
    let facts = enn_common::config::Facts { cores: 2, gpus: 0, cuda_worker: false, cwd: "/t".into() };
    enn_common::config::resolve(&raw, &facts).unwrap_or_else(|errors| panic!("{errors:?}\n{text}"))
}

#[test]
fn kinds_follow_from_the_values() {
    let text = table("zahl;Straße mit Raum;an;wann;code;size", 40, |row| {
        let city = ["\"Köln; Süd\"", "Bonn", "\"say \"\"ja\"\"\""][row % 3];
        format!(
            "{}.5;{city};{};2024-01-{:02} 06:00:00;{:03};{}",
            row,
            row % 2 == 0,
            row % 28 + 1,
            row % 5,
            [1, 2, 9][row % 3]
        )
    });
    let bench = Bench::new("t.csv", &[b"\xef\xbb\xbf".as_slice(), &text].concat());
    let expected = [
        ("zahl", GuessedKind::Number),
        ("Straße mit Raum", GuessedKind::Category),
        ("an", GuessedKind::Category),
        ("wann", GuessedKind::Time),
        ("code", GuessedKind::Category),
        ("size", GuessedKind::Number),
    ];
    assert_eq!(kinds(&bench), expected.map(|(name, kind)| (name.to_owned(), Some(kind))));
    let found = &bench.sample().guesses()[1].found;
    assert_eq!(found, "3 different texts: Köln; Süd, Bonn, say \"ja\"");
}

#[test]
fn identifiers_constants_and_empty_columns_are_left_out_with_their_reason() {
    let text = table(",customer_id,uuid,same,empty,rare,text,y", 200, |row| {
        let rare = if row == 7 { "1.5" } else { "NA" };
        let prose = format!("a long sentence about customer {row} that nobody has written twice");
        format!("{row},{},u-{},Z,,{rare},{prose},{}", (row * 7919) % 173 + 1000, noise(row), noise(row + 999))
    });
    let bench = Bench::new("t.csv", &text);
    let proposal = bench.propose(&target("y"));
    let SurveyError::NoInputs { .. } = proposal.unwrap_err() else { panic!() };
    let text = String::from_utf8(text).unwrap().replace(",y\n", ",y,a\n");
    let text: String = text
        .lines()
        .enumerate()
        .map(|(at, line)| if at == 0 { format!("{line}\n") } else { format!("{line},{}\n", noise(at + 5)) })
        .collect();
    let bench = Bench::new("t.csv", text.as_bytes());
    let proposal = bench.propose(&target("y")).unwrap();
    assert_eq!(proposal.task, TargetTask::Regression);
    for (name, why) in [
        ("", "identifier: numbers the rows"),
        ("customer_id", "identifier by its name, with 173 different values"),
        ("uuid", "identifier: each value occurs once"),
        ("same", "constant: always Z"),
        ("empty", "all of its cells are missing"),
        ("rare", "more than 99 % of its cells are missing"),
        ("text", "prose: nearly each text occurs once"),
    ] {
        assert_eq!(reason(&proposal, name), why, "{name}");
    }
    assert_eq!(role(&proposal, "a"), ColumnRole::Input);
    let document = bench.text(&target("y"));
    assert!(document.contains("# row_id = \"uuid\""), "{document}");
    resolved(&document);
}

#[test]
fn leaks_are_left_out_or_remarked_on() {
    let text = table("a,double,y,y_group,price_level,price,price_currency,other", 300, |row| {
        let y = noise(row);
        let price = noise(row + 7000);
        format!(
            "{},{},{y},g{},{},{price},{},{}",
            noise(row + 1000),
            2.0 * y + 3.0,
            row % 3,
            price.round(),
            row % 2,
            noise(row + 9)
        )
    });
    let bench = Bench::new("t.csv", &text);
    let proposal = bench.propose(&target("y")).unwrap();
    assert_eq!(reason(&proposal, "double"), "likely leak: it is y, but for a factor and a constant");
    for name in ["a", "y_group", "other", "price"] {
        assert_eq!(role(&proposal, name), ColumnRole::Input, "{name}");
    }
    let proposal = bench.propose(&target("price")).unwrap();
    assert!(reason(&proposal, "price_level").starts_with("likely leak: it"), "{:?}", reason(&proposal, "price_level"));
    let currency = proposal.columns.iter().find(|column| column.guess.name == "price_currency").unwrap();
    assert_eq!(currency.role, ColumnRole::Input);
    assert!(currency.remark.as_ref().unwrap().contains("its name contains that of the target price"));
}

#[test]
fn a_copy_of_the_classes_is_a_leak_and_a_sorted_table_is_none() {
    let text = table("a,flat,label,copy", 300, |row| {
        format!("{},{},{},{}", noise(row), row % 2, ["x", "y", "z"][row / 100], ["1", "2", "3"][row / 100])
    });
    let bench = Bench::new("t.csv", &text);
    let proposal = bench.propose(&target("label")).unwrap();
    assert_eq!(proposal.task, TargetTask::Classification);
    assert!(reason(&proposal, "copy").starts_with("likely leak"));
    assert_eq!((role(&proposal, "a"), role(&proposal, "flat")), (ColumnRole::Input, ColumnRole::Input));
    let document = bench.text(&target("label"));
    assert!(document.contains("target_kind = \"category\""), "{document}");
    resolved(&document);
}

#[test]
fn whole_numbers_are_classes_if_they_count_from_the_start() {
    let text = table("a,two,three,rating,count", 100, |row| {
        format!("{},{},{},{},{}", noise(row), row % 2, row % 3, row % 6 + 3, row % 60)
    });
    let bench = Bench::new("t.csv", &text);
    let task = |name: &str| bench.propose(&target(name)).unwrap().task;
    assert_eq!(["two", "three", "rating", "count", "a"].map(task), {
        use TargetTask::{Classification as C, Regression as R};
        [C, C, R, R, R]
    });
    let forced = ColumnChoices { task: Some(TargetTask::Classification), ..target("rating") };
    assert_eq!(bench.propose(&forced).unwrap().task, TargetTask::Classification);
    let forced = ColumnChoices { task: Some(TargetTask::Regression), ..target("two") };
    assert!(!bench.text(&forced).contains("\ntarget_kind"));
}

#[test]
fn texts_among_numbers_are_missing_and_notations_that_are_not_read_are_named() {
    let text = table("a;price;when;day;y", 50, |row| {
        let a = if row % 9 == 0 { "?".to_owned() } else { noise(row).to_string() };
        format!(
            "{a};1.234,{row};{:02}.{:02}.2024;202401{:02};{}",
            row % 28 + 1,
            row % 12 + 1,
            row % 28 + 1,
            noise(row + 50)
        )
    });
    let bench = Bench::new("t.csv", &text);
    let proposal = bench.propose(&target("y")).unwrap();
    assert_eq!(proposal.missing, ["?"]);
    assert!(reason(&proposal, "price").contains("decimal comma"));
    assert!(reason(&proposal, "when").contains("dates in a notation that is not read"));
    assert!(reason(&proposal, "day").contains("dates without dashes"));
    assert!(bench.text(&target("y")).contains("\nmissing = [\"?\"]"));
    let refused = bench.propose(&target("price")).unwrap_err().to_string();
    assert!(refused.contains("decimal comma") && refused.contains("hint:"), "{refused}");
}

#[test]
fn targets_of_which_nothing_can_be_learned_are_refused() {
    let text = table("a,same,none,when,name,y,y", 60, |row| {
        format!("{},5,,2024-01-{:02},n{row},{},1", noise(row), row % 28 + 1, noise(row))
    });
    let bench = Bench::new("t.csv", &text);
    for (name, part) in [
        ("same", "it is always 5"),
        ("none", "all of its cells are missing"),
        ("when", "found times"),
        ("name", "60 different texts in 60 rows"),
        ("y", "the header has this name twice"),
        ("sane", "did you mean \"same\""),
        ("zzz", "its columns: \"a\", \"same\""),
    ] {
        let error = bench.propose(&target(name)).unwrap_err().to_string();
        assert!(error.contains(part) && error.starts_with("--target"), "{error}");
    }
    let proposal = bench.propose(&target("a")).unwrap();
    assert!(reason(&proposal, "y").contains("names it twice"));
}

#[test]
fn files_without_rows_say_so_and_one_row_has_no_target() {
    assert!(Bench::new("t.csv", b"").error().contains("the file is empty"));
    assert!(Bench::new("t.csv", b"a,b\n").error().contains("a header and nothing else"));
    assert!(Bench::new("t.csv", b"a,b\n1,2,3\n").error().contains("no row has as many fields"));
    let one = Bench::new("t.csv", b"a,b\n1,2\n");
    assert_eq!(one.sample().rows, 1);
    assert!(one.propose(&target("b")).unwrap_err().to_string().contains("always 2"));
}

#[test]
fn a_table_with_times_is_divided_by_them() {
    let sorted = table("day,a,y", 90, |row| {
        format!("2024-{:02}-{:02},{},{}", row / 28 + 1, row % 28 + 1, noise(row), noise(row + 1))
    });
    let bench = Bench::new("t.csv", &sorted);
    let document = bench.text(&target("y"));
    assert!(document.contains("\nkind = \"chronological\"") && document.contains("column = \"day\""), "{document}");
    resolved(&document);
    let birth =
        table("birth_date,a,y", 90, |row| format!("19{}-01-05,{},{}", row % 60 + 30, noise(row), noise(row + 1)));
    assert_eq!(Bench::new("t.csv", &birth).propose(&target("y")).unwrap().split, None);
    let seen =
        table("seen,a,y", 90, |row| format!("2024-01-{:02},{},{}", row * 11 % 28 + 1, noise(row), noise(row + 1)));
    assert!(!Bench::new("t.csv", &seen).propose(&target("y")).unwrap().split.unwrap().is_used);
    let named = ColumnChoices { time: Some("seen".into()), ..target("y") };
    assert!(Bench::new("t.csv", &seen).propose(&named).unwrap().split.unwrap().is_used);
    let wrong = ColumnChoices { time: Some("a".into()), ..target("y") };
    assert!(Bench::new("t.csv", &seen).propose(&wrong).unwrap_err().to_string().contains("--time"));
}

#[test]
fn forecasts_have_the_step_of_their_times() {
    let text = table("time,shop,temp,wind_dir,note,sales", 240, |row| {
        let hour = row / 2;
        format!(
            "2024-01-{:02}T{:02}:00:00Z,s{},{},{},n{},{}",
            hour / 24 + 1,
            hour % 24,
            row % 2,
            noise(row),
            row * 37 % 180 * 2,
            row % 4,
            noise(row + 3)
        )
    });
    let bench = Bench::new("t.csv", &text);
    let choices = ColumnChoices { time: Some("time".into()), series: Some("shop".into()), ..target("sales") };
    let document = bench.text(&choices);
    for part in ["entity = \"shop\"", "step_s = 3600", "steps = 24", "circular = [\"wind_dir\"]", "#   \"note\""] {
        assert!(document.contains(part), "{part}\n{document}");
    }
    resolved(&document);
    let steps = ColumnChoices { horizon: Some(6), ..choices.clone() };
    assert!(bench.text(&steps).contains("steps = 6"));
    for (changed, part) in [
        (ColumnChoices { time: None, ..choices.clone() }, "needs the column of times"),
        (ColumnChoices { series: None, horizon: Some(3), ..choices.clone() }, "--series names none"),
        (ColumnChoices { task: Some(TargetTask::Classification), ..choices.clone() }, "not classes"),
        (ColumnChoices { targets: vec!["sales".into(), "temp".into()], ..choices.clone() }, "one target"),
        (ColumnChoices { series: Some("time".into()), ..choices }, "another role"),
    ] {
        let error = bench.propose(&changed).unwrap_err().to_string();
        assert!(error.contains(part) && error.contains("hint:"), "{error}");
    }
}

#[test]
fn names_and_cells_cannot_break_out_of_the_document() {
    let text = table("\"a\"\"] #\",\"two\nlines\",\"tab\there\",y", 40, |row| {
        format!("{},\"x\ny{}\",\"#]{}\",{}", noise(row), row % 3, row % 2, noise(row + 1))
    });
    let bench = Bench::new("t.csv", &text);
    let config = resolved(&bench.text(&target("y")));
    let columns = config.data.unwrap();
    assert_eq!(columns.input_columns(), ["a\"] #", "two\nlines", "tab\there"]);
}

#[test]
fn wide_tables_take_all_columns_but_some() {
    let header: Vec<String> = (0..250).map(|column| format!("c{column}")).collect();
    let text = table(&format!("{},same,y", header.join(",")), 40, |row| {
        let cells: Vec<String> = (0..250).map(|column| noise(row * 250 + column).to_string()).collect();
        format!("{},1,{}", cells.join(","), noise(row + 77))
    });
    let document = Bench::new("t.csv", &text).text(&target("y"));
    assert!(document.contains("features = \"*\"") && document.contains("  \"same\","), "{document}");
    assert!(document.lines().count() < 60);
    resolved(&document);
}

#[test]
fn roles_that_somebody_names_are_kept() {
    let text = table("id,shop,same,day,w,noise,y", 60, |row| {
        format!("{},{},1,2024-01-{:02},1,{},{}", row + 100, row % 4, row % 28 + 1, noise(row), noise(row + 500))
    });
    let bench = Bench::new("t.csv", &text);
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    let choices = ColumnChoices {
        exclude: names(&["noise"]),
        categories: names(&["shop"]),
        weight: Some("w".into()),
        group: Some("day".into()),
        ..target("y")
    };
    let document = bench.text(&choices);
    for line in
        ["{ column = \"shop\", kind = \"category\" },", "weight = \"w\"", "kind = \"group\"", "column = \"day\""]
    {
        assert!(document.contains(line), "{line}: {document}");
    }
    assert!(!document.contains("noise") && document.contains("#   \"id\","), "{document}");
    resolved(&document);

    let feature = |column: &str, written: Option<&str>| FeatureChoice {
        column: column.to_owned(),
        written: written.map(str::to_owned),
    };
    let index = "{ column = \"shop\", kind = \"index\", rows = 4 }";
    let features = vec![feature("same", None), feature("shop", Some(index))];
    let document = bench.text(&ColumnChoices { features, ..target("y") });
    assert!(document.contains("  \"same\",") && document.contains(&format!("  {index},")), "{document}");
    assert!(!document.contains("noise") && !document.contains("\"id\""), "{document}");
    resolved(&document);

    let twice = ColumnChoices { weight: Some("y".into()), ..target("y") };
    assert!(bench.propose(&twice).unwrap_err().to_string().contains("another role already (--target)"));
    let absent = ColumnChoices { exclude: names(&["nois"]), ..target("y") };
    assert!(bench.propose(&absent).unwrap_err().to_string().starts_with("--exclude: the table has no column \"nois\""));
    let constant = ColumnChoices { task: Some(TargetTask::Regression), ..target("same") };
    assert!(bench.propose(&constant).is_ok() && bench.propose(&target("same")).is_err());
}

#[test]
fn a_large_file_is_seen_in_parts_and_the_same_each_time() {
    let text = table("row,part,y", 400_000, |row| format!("{row},p{},{}", row / 100_000, row % 97));
    let bench = Bench::new("t.csv", &text);
    let sample = bench.sample();
    assert!(!sample.is_whole && sample.rows <= 50_000, "{}", sample.rows);
    assert!((350_000..500_000).contains(&sample.rows_estimate), "{}", sample.rows_estimate);
    let guesses = sample.guesses();
    assert!(
        guesses[1].found.starts_with("4 different texts"),
        "a part that only the end has is seen: {}",
        guesses[1].found
    );
    assert_eq!(bench.sample().guesses(), guesses);
}

#[test]
fn several_files_are_one_table() {
    let mut bench = Bench::new("a.csv", b"a,y\n1,2\n2,3\n");
    let other = bench.dir.path().join("b.csv");
    std::fs::write(&other, "y,a,extra\n9,8,7\n").unwrap();
    bench.files.push(other.clone());
    assert_eq!(bench.sample().rows, 3);
    assert_eq!(bench.sample().guesses()[1].found, "3 different whole numbers, 2 to 9");
    std::fs::write(&other, "a\n8\n").unwrap();
    assert!(bench.error().contains("has no column"), "{}", bench.error());
}
