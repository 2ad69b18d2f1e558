//! Windows through the public function: the weather example against pandas, and small tables with every oddity.

use crate::stage::{StageOptions, Staged, stage};
use enn_common::{
    config::data::{
        Calendar, ColumnRange, DataConfig, DuplicatePolicy, Layout, SplitConfig, SplitKind, TargetMask, WindowsLayout,
    },
    staged::{Split, Staged as Arrays, StagedMeta},
};
use std::{fs, path::Path};

fn strings(names: &[&str]) -> Vec<String> {
    names.iter().map(ToString::to_string).collect()
}

fn split(kind: SplitKind) -> SplitConfig {
    SplitConfig { kind, val: 0.15, test: 0.15, seed: 1, column: None }
}

fn config(file: &Path, layout: WindowsLayout) -> DataConfig {
    DataConfig {
        files: vec![file.to_path_buf()],
        sources: vec![],
        format: None,
        sheet: None,
        missing: strings(&["NA"]),
        duplicates: DuplicatePolicy::First,
        layout: Layout::Windows(layout),
        split: split(SplitKind::Blocked),
        units: "°F".into(),
        input_units: [("temp".to_owned(), "°F".to_owned())].into(),
        ranges: vec![ColumnRange { column: "wind_speed".into(), low: 0.0, high: 150.0 }],
        weight: None,
        mask: TargetMask::Finite,
    }
}

fn weather() -> WindowsLayout {
    WindowsLayout {
        entity: "origin".into(),
        time: "time_hour".into(),
        time_offset_s: -18_000,
        step_s: 3600,
        steps: 24,
        history: 1,
        inputs: strings(&["temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib"]),
        circular: strings(&["wind_dir"]),
        target: "temp".into(),
        calendar: vec![Calendar::DayOfYear, Calendar::Weekday],
        target_valid_min: 0.5,
    }
}

fn run(config: &DataConfig, training: Option<&StagedMeta>) -> (Staged, Arrays) {
    let out = tempfile::tempdir().unwrap();
    let options = StageOptions { out: out.path().into(), threads: 2, for_prediction: training.cloned() };
    let staged = stage(config, &options, &mut |_| {}).unwrap();
    let arrays = Arrays::open(&staged.dir).unwrap();
    (staged, arrays)
}

fn error(config: &DataConfig) -> String {
    let out = tempfile::tempdir().unwrap();
    let options = StageOptions { out: out.path().into(), threads: 2, for_prediction: None };
    stage(config, &options, &mut |_| {}).unwrap_err().to_string()
}

fn sum(values: &[f32]) -> f64 {
    values.iter().filter(|value| !value.is_nan()).map(|value| f64::from(*value)).sum()
}

/// Statistics of the same steps in pandas 3.0, without the first day of each month but January: its history is the last day of the month
/// before, which is tested.
#[test]
fn the_weather_example_equals_pandas() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/weather/weather.csv");
    let (staged, arrays) = run(&config(&file, weather()), None);
    let meta = &staged.meta;
    assert_eq!((meta.rows, meta.features.len(), meta.out_shape.as_slice()), (352, 652, [3, 24].as_slice()));
    assert_eq!((meta.split_rows, meta.report.dropped_samples), ([234, 59, 59], 11));
    assert!(
        meta.report.warnings.iter().any(|warning| warning.starts_with("11 windows were left out")),
        "{:?}",
        meta.report
    );
    assert_eq!((meta.report.rows_read, meta.report.absent_cells, meta.report.duplicates), (26_115, 75, 0));
    assert_eq!((meta.report.columns["temp"].missing, meta.report.columns["wind_speed"].out_of_range), (1, 1));
    assert_eq!((arrays.row_id()[0], arrays.row_id()[351]), (1_357_084_800, 1_388_361_600));
    assert_eq!((meta.row_names[0].as_str(), meta.row_names[351].as_str()), ("2013-01-02", "2013-12-30"));
    assert_eq!(meta.features[189].name, "temp[EWR,-1d,07h]");
    assert_eq!(meta.features[651].name, "weekday.cos");
    assert!(meta.features.iter().all(|feature| (feature.units == "°F") == feature.name.starts_with("temp[")));
    assert_eq!((meta.out_labels[0].clone(), meta.out_labels[1][5].as_str()), (strings(&["EWR", "JFK", "LGA"]), "05h"));
    let missing = |mask: &[u8]| mask.iter().filter(|valid| **valid == 0).count();
    assert_eq!((missing(arrays.x_mask()), missing(arrays.y_mask())), (4197, 85));
    assert!((sum(arrays.x()) - 27_540_224.680_333_94).abs() < 0.5, "{}", sum(arrays.x()));
    assert!((sum(arrays.y()) - 1_393_840.780_380_249).abs() < 1e-3, "{}", sum(arrays.y()));
    let stats = meta.x_stats[189];
    assert!((stats.mean - 53.485_384_525_396_89).abs() < 1e-9 && (stats.std - 18.009_151_946_899_177).abs() < 1e-9);
    let stats = meta.y_stats[2 * 24 + 5];
    assert!((stats.mean - 51.823_846_303_499_664).abs() < 1e-9 && (stats.std - 16.524_815_928_941_93).abs() < 1e-9);
    // Persistence is yesterday's target: the input of the day after equals the target of the day before.
    let persistence = meta.persistence.as_ref().unwrap();
    for (cell, column) in persistence.iter().enumerate() {
        let today = arrays.y_row(100)[cell];
        let tomorrow = arrays.x_row(101)[*column as usize];
        assert!(today == tomorrow || (today.is_nan() && tomorrow.is_nan()));
    }
}

/// Two entities, two steps a window, one window of history; entity b lacks its last row.
fn small(dir: &Path, extra: &str) -> DataConfig {
    let file = dir.join("t.csv");
    let mut text = String::from("who,when,v,w\n");
    for step in 0..10 {
        for who in ["b", "a"] {
            if (who, step) != ("b", 9) {
                text.push_str(&format!("{who},{},{},7\n", step * 60, step * 10 + i32::from(who == "b")));
            }
        }
    }
    fs::write(&file, text + extra).unwrap();
    let layout = WindowsLayout {
        entity: "who".into(),
        time: "when".into(),
        time_offset_s: 0,
        step_s: 60,
        steps: 2,
        history: 1,
        inputs: strings(&["w"]),
        circular: vec![],
        target: "v".into(),
        calendar: vec![],
        target_valid_min: 0.6,
    };
    let mut config = config(&file, layout);
    config.split = SplitConfig { kind: SplitKind::Chronological, val: 0.0, test: 0.25, seed: 1, column: None };
    config
}

fn layout(config: &mut DataConfig) -> &mut WindowsLayout {
    match &mut config.layout {
        Layout::Windows(layout) => layout,
        _ => panic!("windows"),
    }
}

#[test]
fn history_target_and_order_are_what_their_names_say() {
    let dir = tempfile::tempdir().unwrap();
    let (staged, arrays) = run(&small(dir.path(), ""), None);
    let names: Vec<&str> = staged.meta.features.iter().map(|feature| feature.name.as_str()).collect();
    assert_eq!(names[..4], ["w[a,-2min,00:00]", "v[a,-2min,00:00]", "w[b,-2min,00:00]", "v[b,-2min,00:00]"]);
    assert_eq!(arrays.row_id(), [120, 240, 360, 480]);
    assert_eq!(arrays.x_row(0), [7.0, 0.0, 7.0, 1.0, 7.0, 10.0, 7.0, 11.0]);
    assert_eq!(arrays.y_row(0), [20.0, 30.0, 21.0, 31.0], "entity by entity");
    assert_eq!(arrays.y_row(3)[..2], [80.0, 90.0]);
    assert_eq!(arrays.y_mask_row(3), [1, 1, 0, 0], "half of b's targets are too few, and those of a stay");
    let notes = staged.meta.report.notes.join("\n");
    assert!(notes.contains("1 windows of single series have no history, or too few valid targets"), "{notes}");
    assert_eq!(staged.meta.persistence, Some(vec![1, 5, 3, 7]));
    assert_eq!(arrays.split(), [0, 0, 0, 2]);
    assert_eq!(staged.meta.report.absent_cells, 1);
    assert!(staged.meta.report.columns["w"].constant && !staged.meta.report.columns["v"].constant);
    assert_eq!(staged.meta.row_names[0], "1970-01-01 00:02");
}

#[test]
fn too_little_target_drops_a_sample_and_dead_inputs_go() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = small(dir.path(), "");
    layout(&mut config).target_valid_min = 0.8;
    config.missing = strings(&["7"]);
    // b has too little there anyway.
    let text = fs::read_to_string(&config.files[0]).unwrap();
    fs::write(&config.files[0], text.replace("a,540,90,", "a,540,,")).unwrap();
    let (staged, arrays) = run(&config, None);
    assert_eq!((arrays.rows(), staged.meta.report.dropped_samples), (3, 1));
    assert_eq!(staged.meta.features.len(), 4, "w is missing everywhere");
    assert_eq!(staged.meta.persistence, Some(vec![0, 2, 1, 3]), "it follows the inputs left");
    assert!(
        staged
            .meta
            .report
            .notes
            .iter()
            .any(|note| note == "left out of the inputs: no valid value in the training samples: w")
    );
    assert_eq!(arrays.x_row(0), [0.0, 1.0, 10.0, 11.0]);
}

#[test]
fn repeated_cells_follow_the_policy() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = small(dir.path(), "a,120,999,7\na,605,1,7\n,1,1,1\n");
    let (staged, arrays) = run(&config, None);
    assert_eq!((staged.meta.report.duplicates, arrays.y_row(0)[0]), (1, 20.0));
    let notes = staged.meta.report.notes.join("\n");
    assert!(
        notes.contains("1 rows without who or when") && notes.contains("1 rows are not at a multiple of 60 s"),
        "{notes}"
    );
    let warnings = staged.meta.report.warnings.join("\n");
    assert!(warnings.contains("1 of 21 rows (4.8 %) were left out because they repeat entity and time"), "{warnings}");
    config.duplicates = DuplicatePolicy::Last;
    assert_eq!(run(&config, None).1.y_row(0)[0], 999.0);
    config.duplicates = DuplicatePolicy::Error;
    let text = error(&config);
    assert!(text.contains("row 20 (counted without the header) repeats entity \"a\" at 1970-01-01 00:02"), "{text}");
}

#[test]
fn a_sample_to_predict_needs_only_its_history() {
    let dir = tempfile::tempdir().unwrap();
    let (trained, _) = run(&small(dir.path(), ""), None);
    let mut config = small(dir.path(), "");
    fs::write(&config.files[0], "who,when,v,w\na,0,1,7\na,60,2,7\nstranger,60,3,7\n").unwrap();
    let (staged, arrays) = run(&config, Some(&trained.meta));
    assert_eq!(staged.meta.features, trained.meta.features);
    assert_eq!((arrays.row_id(), staged.meta.split_rows), ([120].as_slice(), [0, 0, 1]));
    assert_eq!((arrays.x_row(0)[1], arrays.x_row(0)[5]), (1.0, 2.0));
    assert!(arrays.x_row(0)[3].is_nan() && arrays.y_mask() == [0; 4]);
    let notes = staged.meta.report.notes.join("\n");
    assert!(notes.contains("(stranger)") && notes.contains("no row is of b"), "{notes}");
    layout(&mut config).steps = 3;
    let options = StageOptions { out: dir.path().into(), threads: 1, for_prediction: Some(trained.meta) };
    let text = stage(&config, &options, &mut |_| {}).unwrap_err().to_string();
    assert!(text.contains("[2, 3]") && text.contains("[2, 2]"), "{text}");
}

#[test]
fn contradictions_and_strange_times_are_one_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let config = small(dir.path(), "");
    let with = |change: &dyn Fn(&mut DataConfig)| {
        let mut config = config.clone();
        change(&mut config);
        error(&config)
    };
    assert!(with(&|c| layout(c).history = 0).starts_with("data.windows.history: found 0, expected at least 1"));
    assert!(with(&|c| c.duplicates = DuplicatePolicy::Keep).starts_with("data.duplicates: found keep"));
    assert!(with(&|c| c.split.kind = SplitKind::Group).starts_with("data.split.kind: found group"));
    assert!(with(&|c| layout(c).target = "u".into()).contains("has no column \"u\""));
    assert!(
        with(&|c| layout(c).time = "who".into())
            .contains("t.csv:2, column \"who\": found \"b\", expected a time stamp")
    );
    let text = error(&small(dir.path(), "a,9999999999,1,1\n"));
    assert!(text.contains("spans 166666667 steps of 60 s for 2 entities but the table has only 20 rows"), "{text}");
}

#[test]
fn a_random_split_of_windows_is_the_same_for_more_data() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = small(dir.path(), "");
    config.split = split(SplitKind::Random);
    config.split.test = 0.4;
    let (_, short) = run(&config, None);
    config = small(dir.path(), "a,600,1,1\na,660,1,1\nb,600,1,1\nb,660,1,1\n");
    config.split = split(SplitKind::Random);
    config.split.test = 0.4;
    let (_, long) = run(&config, None);
    assert_eq!(long.split()[..short.rows()], *short.split());
    assert_eq!(long.rows(), short.rows() + 1);
    assert!(long.rows_of(Split::Test).count() > 0);
}

#[test]
fn the_step_is_judged_by_the_time_of_each_entity() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = small(dir.path(), "");
    layout(&mut config).step_s = 3600;
    layout(&mut config).inputs = strings(&["v"]);
    // Twelve entities of four days each, a month after one another, by the hour of the day and then by the day: rows that follow each
    // other are a day apart, and every hour of an entity's own four days has one.
    let mut text = String::from("who,when,v\n");
    for entity in 0..12 {
        for hour in 0..24 {
            for day in 0..4 {
                text.push_str(&format!("e{entity},{},{}\n", ((entity * 30 + day) * 24 + hour) * 3600, day * hour));
            }
        }
    }
    fs::write(&config.files[0], text).unwrap();
    let (staged, _) = run(&config, None);
    assert_eq!(staged.meta.report.rows_read, 12 * 96);
    // Rows a day apart in steps of an hour are refused all the same.
    let rows = (0..12).flat_map(|entity| (0..40).map(move |day| format!("e{entity},{},{day}\n", day * 86_400)));
    fs::write(&config.files[0], format!("who,when,v\n{}", rows.collect::<String>())).unwrap();
    let error = error(&config);
    assert!(error.contains("set data.windows.step_s = 86400"), "{error}");
}
