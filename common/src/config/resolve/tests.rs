//! Tests of resolving: what a user writes, and every kind of mistake with its place.

use super::*;
use crate::config::{
    data::{Calendar, DuplicatePolicy, FeatureKind, Index, Labels, Layout, Outside, SplitKind, TargetMask},
    forest::{Mixer, Mode, Part, TemplateConfig},
    model::Preset,
    raw::RawValue,
    train::{CellWeights, Device, Nproc, Precision, Recovery},
};
use std::path::{Path, PathBuf};

const WEATHER: &str = r#"
name = "weather"
seed = 7

[data]
files = ["../raw/weather.csv"]
units = "°F"
ranges = { temp = [-60, 140] }

[data.windows]
entity = "origin"
time = "time_hour"
time_offset_s = -18000
steps = 24
inputs = ["temp", "dewp"]
circular = ["wind_dir"]
target = "temp"
calendar = ["day_of_year", "weekday"]

[data.split]
kind = "blocked"

[model]
d_model = 48
heads = 4

[train]
epochs = 40
lr = 2e-3

[cluster]
nproc_per_node = 2
"#;

fn facts() -> Facts {
    Facts { cores: 8, gpus: 0, cuda_worker: false, cwd: "/home/u".into() }
}

fn parse(text: &str) -> RawConfig {
    RawConfig::parse(text, Path::new("conf/weather.toml")).unwrap()
}

fn mistakes(text: &str) -> Vec<String> {
    resolve(&parse(text), &facts()).unwrap_err().iter().map(ToString::to_string).collect()
}

#[test]
fn the_example_resolves() {
    let config = resolve(&parse(WEATHER), &facts()).unwrap();
    let data = config.data.unwrap();
    assert_eq!(data.files, [PathBuf::from("/home/u/conf/../raw/weather.csv")]);
    assert_eq!((data.units.as_str(), data.duplicates), ("°F", DuplicatePolicy::First));
    assert_eq!((data.ranges[0].column.as_str(), data.ranges[0].low), ("temp", -60.0));
    let Layout::Windows(windows) = data.layout else { panic!() };
    assert_eq!((windows.step_s, windows.history, windows.time_offset_s), (3600, 1, -18000));
    assert_eq!(windows.calendar, [Calendar::DayOfYear, Calendar::Weekday]);
    assert_eq!((data.split.kind, data.split.seed), (SplitKind::Blocked, 7));
    assert_eq!((config.train.epochs, config.train.lr, config.train.clip), (40, 2e-3, 1.0));
    assert_eq!((config.cluster.nproc_per_node, config.cluster.device), (Nproc::Count(2), Device::Cpu));
}

#[test]
fn every_mistake_is_reported_with_its_place() {
    let text = "nam = \"x\"\n[data]\nfiles = []\n[data.rows]\nfeatures = [\"a\", \"a\", 3]\ntargets = [\"y\", \"z\"]\nout_shape = [3]\n[data.split]\nkind = \"rand\"\nval = 0.6\ntest = 0.5\n[model]\nd_model = 128\nheads = 3\ndropout = 1.0\n[train]\nepoch = 3\nlr = \"fast\"\nbatch = -1\n[cluster]\ndevice = \"cuda\"\n";
    let found = mistakes(text);
    let expected = [
        "conf/weather.toml:1:1: nam: unknown key (did you mean `name`?)",
        "conf/weather.toml:3:9: data.files: the list is empty, expected at least one file",
        "conf/weather.toml:5:23: data.rows.features: found the number 3, expected a column name",
        "conf/weather.toml:5:12: data.rows.features: \"a\" is listed twice",
        "conf/weather.toml:7:13: data.rows.out_shape: out_shape [3] has 3 cells, but 2 target columns are listed",
        "conf/weather.toml:9:8: data.split.kind: unknown value \"rand\"",
        "conf/weather.toml:10:7: data.split.val: val = 0.6 and test = 0.5 leave no rows",
        "conf/weather.toml:15:11: model.dropout: 1 is out of range, expected a number at least 0 and below 1",
        "conf/weather.toml:14:9: model.heads: d_model = 128 is not divisible by heads = 3",
        "conf/weather.toml:18:6: train.lr: found the text \"fast\", expected a number at least",
        "conf/weather.toml:19:9: train.batch: -1 is out of range, expected a whole number from 0",
        "conf/weather.toml:17:1: train.epoch: unknown key (did you mean `epochs`?)",
        "conf/weather.toml:21:10: cluster.device: CUDA is asked for, but this machine shows no GPU",
    ];
    for sentence in expected {
        assert!(found.iter().any(|line| line.starts_with(sentence)), "missing: {sentence}\nfound: {found:#?}");
    }
    assert_eq!(found.len(), expected.len(), "{found:#?}");
}

#[test]
fn what_is_to_be_predicted_is_no_input() {
    let rows = "[data]\nfiles = \"a.csv\"\n[data.rows]\nfeatures = [\"a\", { column = \"b\", kind = \"category\" }]\ntargets = [\"y\", \"b\"]\n";
    let arrays = "[data]\nfiles = \"a.npz\"\n[data.arrays]\nx = \"v\"\ny = \"v\"\n";
    for (text, expected) in [
        (rows, "4:12: data.rows.features: \"b\" is a target as well"),
        (arrays, "4:5: data.arrays.x: \"v\" is a target as well"),
    ] {
        let found = mistakes(text);
        assert!(found.len() == 1 && found[0].contains(expected), "{found:?}");
    }
}

#[test]
fn layouts_exclude_each_other_and_one_is_needed() {
    let none = mistakes("[data]\nfiles = \"a.csv\"\n");
    assert_eq!(none.len(), 1);
    assert!(none[0].contains("found none, expected exactly one of [data.rows]"), "{none:?}");
    let both = mistakes("[data]\nfiles = \"a.csv\"\n[data.rows]\nfeatures=[\"a\"]\ntargets=[\"b\"]\n[data.arrays]\n");
    assert!(both[0].contains("[data.rows] and [data.arrays]"), "{both:?}");
}

const SOURCES: &str = "[data.rows]\nfeatures = [\"a\"]\ntargets = [\"b\"]\n[[data.sources]]\nname = \"north\"\nfiles = \"n.csv\"\nweight = 1\n\
    [[data.sources]]\nname = \"south\"\nfiles = [\"s1.csv\", \"s2.csv\"]\nweight = 2.5\n";

#[test]
fn sources_have_their_files_and_weights() {
    let data = resolve(&parse(SOURCES), &facts()).unwrap().data.unwrap();
    assert_eq!(data.files, ["n.csv", "s1.csv", "s2.csv"].map(|name| PathBuf::from("/home/u/conf").join(name)));
    assert_eq!(data.source_weights(), Some(vec![1.0, 2.5]));
    let files: Vec<_> = data.source_files().map(|(source, files)| (source.name.as_str(), files)).collect();
    assert_eq!(files, [("north", 0..1), ("south", 1..3)]);
    assert_eq!(data.source_of(2).map(|source| source.name.as_str()), Some("south"));
    let natural = SOURCES.replace("weight = 1\n", "").replace("weight = 2.5\n", "");
    assert_eq!(resolve(&parse(&natural), &facts()).unwrap().data.unwrap().source_weights(), None);
}

#[test]
fn sources_that_contradict_themselves_are_refused() {
    let refused = |text: &str, expected: &str| {
        let found = mistakes(text);
        assert!(found.iter().any(|line| line.contains(expected)), "missing: {expected}\nfound: {found:#?}");
    };
    refused(&SOURCES.replace("weight = 1\n", ""), "1 of 2 sources have a weight");
    refused(&SOURCES.replace("weight = 1\n", "weight = 0\n"), "data.sources.weight: 0 is out of range");
    refused(&SOURCES.replace("south", "north"), "\"north\" is listed twice");
    refused(&SOURCES.replace("s1.csv", "n.csv"), "n.csv\" is listed twice");
    refused(&SOURCES.replace("name = \"south\"\n", ""), "data.sources.name: missing; expected a name for reports");
    refused(&format!("[data]\nfiles = \"a.csv\"\n{SOURCES}"), "stands beside [[data.sources]]");
    refused(&SOURCES.replace("wei", "wai"), "unknown key (did you mean `weight`?)");
    let windows = "[data.windows]\nentity = \"e\"\ntime = \"t\"\ntarget = \"y\"\nsteps = 24\n";
    let sources = &SOURCES[SOURCES.find("[[").unwrap()..];
    let data = resolve(&parse(&format!("{windows}{sources}")), &facts()).unwrap().data.unwrap();
    assert!(matches!(data.layout, Layout::Windows(_)) && data.sources.len() == 2);
}

#[test]
fn syntax_errors_have_a_place() {
    let errors = RawConfig::parse("a = 1\nb = = 2\n", Path::new("x.toml")).unwrap_err();
    assert!(errors[0].to_string().starts_with("x.toml:2:"), "{}", errors[0]);
}

#[test]
fn overrides_come_last_and_name_themselves() {
    let mut raw = parse(WEATHER);
    raw.set("train.epochs=3").unwrap();
    raw.set("name=storm").unwrap();
    raw.set("data.files=other.csv").unwrap();
    raw.set("model.patch=[1, 2]").unwrap();
    raw.set_value("cluster.nproc_per_node", RawValue::Text("cpu".into()), "--nproc-per-node");
    let config = resolve(&raw, &facts()).unwrap();
    assert_eq!((config.train.epochs, config.name.as_str(), config.model.patch), (3, "storm", vec![1, 2]));
    assert_eq!(config.data.unwrap().files, [PathBuf::from("/home/u/other.csv")]);
    assert_eq!(config.cluster.nproc_per_node, Nproc::Count(8));

    raw.set("train.epoks=3").unwrap();
    let errors = resolve(&raw, &facts()).unwrap_err();
    assert_eq!(errors[0].to_string(), "--set train.epoks=3: train.epoks: unknown key (did you mean `epochs`?)");
    assert!(raw.set("train.epochs").unwrap_err().to_string().contains("section.key=value"));
}

#[test]
fn devices_are_decided_by_the_machine() {
    let gpus = Facts { gpus: 2, cuda_worker: true, ..facts() };
    let none = resolve(&parse(""), &facts()).unwrap();
    assert_eq!((none.cluster.nproc_per_node, none.cluster.device), (Nproc::Count(4), Device::Cpu));
    let two = resolve(&parse(""), &gpus).unwrap();
    assert_eq!((two.cluster.nproc_per_node, two.cluster.device), (Nproc::Count(2), Device::Cuda));
    let errors = resolve(&parse("[cluster]\nnproc_per_node = 3\n"), &gpus).unwrap_err();
    assert!(errors[0].to_string().contains("3 workers on CUDA, but this machine shows 2 GPUs"), "{}", errors[0]);
    let cpu = resolve(&parse("[cluster]\nnproc_per_node = 3\ndevice = \"cpu\"\n"), &gpus).unwrap();
    assert_eq!(cpu.cluster.device, Device::Cpu);
    let unbuilt = Facts { cuda_worker: false, ..gpus };
    let errors = resolve(&parse("[cluster]\nnproc_per_node = \"gpu\"\n"), &unbuilt).unwrap_err();
    assert!(errors[0].to_string().contains("enn doctor"), "{}", errors[0]);
}

#[test]
fn precisions_have_names_and_the_worker_decides_by_default() {
    let at = |text: &str| resolve(&parse(text), &facts()).unwrap().train.precision;
    assert_eq!(at(""), Precision::Auto);
    let all = [Precision::Auto, Precision::Fp32, Precision::Tf32, Precision::Bf16, Precision::Fp16, Precision::Fp8];
    for (name, precision) in ["auto", "fp32", "tf32", "bf16", "fp16", "fp8"].into_iter().zip(all) {
        assert_eq!(at(&format!("[train]\nprecision = \"{name}\"\n")), precision);
        assert_eq!(serde_json::to_value(precision).unwrap(), name, "run.json says what the user says");
    }
    let wrong = mistakes("[train]\nprecision = \"half\"\n");
    assert!(wrong[0].contains("train.precision: unknown value \"half\""), "{wrong:?}");
}

#[test]
fn ranges_are_a_section_or_a_list() {
    let head = "[data]\nfiles = \"a.csv\"\n[data.rows]\nfeatures = \"a\"\ntargets = \"y\"\n";
    let as_section = format!("{head}[data.ranges]\na = [-1, 2.5]\n");
    let as_list = format!("{head}[[data.ranges]]\ncolumn = \"a\"\nlow = -1\nhigh = 2.5\n");
    let ranges = |text: &str| resolve(&parse(text), &facts()).unwrap().data.unwrap().ranges;
    assert_eq!(ranges(&as_section), ranges(&as_list));
    assert_eq!((ranges(&as_list)[0].low, ranges(&as_list)[0].high), (-1.0, 2.5));
    let wrong = mistakes(&as_list.replace("low = -1", "lo = 3"));
    assert!(wrong.iter().any(|line| line.contains("data.ranges.lo: unknown key (did you mean `low`?)")), "{wrong:?}");
    let reversed = mistakes(&as_section.replace("[-1, 2.5]", "[3, 2.5]"));
    assert!(reversed[0].contains("data.ranges.a: [3, 2.5] is out of range"), "{reversed:?}");
    let unknown = mistakes(&head.replace("[data]\n", "[data]\nx = 1\n"));
    assert!(unknown[0].contains("units, ranges, weight"), "a key with two shapes is listed once: {unknown:?}");
}

#[test]
fn indices_and_labels_say_how_they_are_read() {
    let features =
        |text: &str| format!("[data]\nfiles = \"a.csv\"\n[data.rows]\ntargets = \"y\"\nfeatures = [{text}]\n");
    let text = features(
        "{ column = \"i\", kind = \"index\", rows = 40 }, { column = \"j\", kind = \"index\", offset = -1, rows = 3, outside = \"clamp\", \
         encoding = \"one_hot\" }, { column = \"l\", kind = \"labels\", separator = \"|\", empty = \"missing\" }, \
         { column = \"m\", kind = \"labels\" }",
    );
    let data = resolve(&parse(&text), &facts()).unwrap().data.unwrap();
    let Layout::Rows(rows) = &data.layout else { panic!("rows") };
    let index = |offset, rows, outside| FeatureKind::Index(Index { offset, rows, outside });
    let labels = |separator, empty_is_missing| FeatureKind::Labels(Labels { separator, empty_is_missing });
    let kinds: Vec<FeatureKind> = rows.features.iter().map(|feature| feature.kind).collect();
    let expected =
        [index(0, 40, Outside::Unknown), index(-1, 3, Outside::Clamp), labels('|', true), labels(';', false)];
    assert_eq!(kinds, expected);
    assert_eq!(rows.features.iter().map(|feature| feature.one_hot).collect::<Vec<_>>(), [false, true, false, false]);
    // As the run keeps it.
    let kept: DataConfig = serde_json::from_str(&serde_json::to_string(&data).unwrap()).unwrap();
    assert_eq!(kept, data);
    for (feature, error) in [
        ("{ column = \"i\", kind = \"index\" }", "data.rows.features.rows: missing; expected how many integers"),
        (
            "{ column = \"i\", kind = \"index\", rows = 0 }",
            "features.rows: 0 is out of range, expected a whole number from 1 to 100000",
        ),
        (
            "{ column = \"i\", kind = \"labels\", separator = \"--\" }",
            "features.separator: found \"--\", expected one character",
        ),
        (
            "{ column = \"i\", kind = \"category\", offset = 1 }",
            "features.offset: means nothing for a column of kind \"category\"; it belongs to kind = \"index\"",
        ),
        (
            "{ column = \"i\", encoding = \"one_hot\" }",
            "features.encoding: means nothing for a column of kind \"number\"; it belongs to kind = \"category\" or \"index\"",
        ),
        (
            "{ column = \"i\", kind = \"lables\", separator = \"|\" }",
            "features.kind: unknown value \"lables\" (did you mean `labels`?)",
        ),
        ("{ kind = \"category\" }", "features.column: missing; expected the name of a column"),
        ("{ column = \"i\", sep = \"|\" }", "features.sep"),
    ] {
        let found = mistakes(&features(feature));
        assert!(found.len() == 1 && found[0].contains(error), "{feature}: {found:?}");
    }
}

#[test]
fn features_have_kinds() {
    let text = "[data]\nfiles = \"a.csv\"\n[data.rows]\nfeatures = [\"a\", { column = \"b\", kind = \"category\" }]\ntargets = \"y\"\n";
    let config = resolve(&parse(text), &facts()).unwrap();
    let Layout::Rows(rows) = config.data.unwrap().layout else { panic!() };
    assert_eq!(rows.features[1].kind, FeatureKind::Category);
    assert_eq!((rows.targets.len(), rows.out_shape), (1, vec![1]));
    let wrong = mistakes(&text.replace("\"category\"", "\"categry\""));
    assert!(wrong[0].contains("did you mean `category`?"), "{wrong:?}");
}

#[test]
fn run_json_keeps_every_field() {
    let config = resolve(&parse(WEATHER), &facts()).unwrap();
    let text = serde_json::to_string_pretty(&config).unwrap();
    assert_eq!(serde_json::from_str::<RunConfig>(&text).unwrap(), config);
}

proptest::proptest! {
    #[test]
    fn no_text_makes_it_panic(text in "[a-z=\\[\\]\"{}0-9.\n ]{0,120}") {
        if let Ok(raw) = RawConfig::parse(&text, Path::new("x.toml")) {
            let _outcome = resolve(&raw, &facts());
        }
    }
}

#[test]
fn kernels_are_one_name_or_an_order() {
    let config = resolve(&parse("[kernels]\nattention = \"plain\"\nretention = [\"a\", \"b\"]\n"), &facts()).unwrap();
    assert_eq!(config.kernels["attention"], ["plain"]);
    assert_eq!(config.kernels["retention"], ["a", "b"]);
    let wrong = mistakes("[kernels]\nattention = 3\nretention = []\nsdpa = [\"a\", \"a\"]\n");
    assert_eq!(wrong.len(), 3, "{wrong:?}");
    assert!(
        wrong[0].contains("2:13: kernels.attention: found the number 3, expected the name of a kernel"),
        "{wrong:?}"
    );
    assert!(wrong[1].contains("kernels.retention: the list is empty"), "{wrong:?}");
    assert!(wrong[2].contains("kernels.sdpa: \"a\" is listed twice"), "{wrong:?}");
}

#[test]
fn rows_may_be_written_down_and_so_many_left_out() {
    let at = |text: &str| resolve(&parse(text), &facts()).unwrap().train;
    let train = at("");
    assert!(!train.ledger);
    assert_eq!([500, 10_000, 1_000_000].map(|rows| train.poisoned_rows_limit(rows)), [10, 10, 1000]);
    let train = at("[train]\nledger = true\npoisoned_rows_max = 0\n");
    assert!(train.ledger);
    assert_eq!(train.poisoned_rows_limit(1_000_000), 0);
    let wrong = mistakes("[train]\npoisoned_rows_max = -1\n");
    assert!(wrong[0].contains("train.poisoned_rows_max"), "{wrong:?}");
}

#[test]
fn recovery_is_chosen_and_what_needs_it_says_so() {
    let with = |cluster: &str| WEATHER.split("[cluster]").next().unwrap().to_owned() + "[cluster]\n" + cluster;
    let cluster = resolve(&parse(&with("nproc_per_node = 3\n")), &facts()).unwrap().cluster;
    assert_eq!((cluster.policy, cluster.spares, cluster.workers_min), (Recovery::Reform, 0, 0));
    let text = with("nproc_per_node = 3\nworkers_min = 2\nspares = 1\nevict_stragglers = true\nhang_timeout_s = 0\n");
    let cluster = resolve(&parse(&text), &facts()).unwrap().cluster;
    assert_eq!((cluster.workers_min, cluster.spares, cluster.hang_timeout_s), (2, 1, 0.0));
    assert!(cluster.evict_stragglers);
    let found = mistakes(&with("nproc_per_node = 2\nworkers_min = 3\nspares = 65\npolicy = \"reforn\"\n"));
    for sentence in [
        "cluster.workers_min: at least 3 workers are asked for, but only 2 are started",
        "cluster.spares: 65 is out of range, expected a whole number from 0 to 64",
        "cluster.policy: unknown value \"reforn\" (did you mean `reform`?)",
    ] {
        assert!(found.iter().any(|line| line.contains(sentence)), "missing: {sentence}\nfound: {found:#?}");
    }
    let found = mistakes(&with("policy = \"restart\"\nnproc_per_node = 2\nworkers_min = 1\nspares = 1\n"));
    assert_eq!(found.len(), 2, "{found:#?}");
    assert!(found.iter().all(|line| line.contains("needs policy = \"reform\"")), "{found:#?}");
}

#[test]
fn tasks_are_added_to_those_of_the_preset() {
    let text = "[model]\npreset = \"temporal\"\ntemporal_latents = 5\nspatial_depth = 2\nmixer = \"retnet\"\n\
                [[model.tasks]]\nname = \"week\"\nmode = \"spatial\"\ntokens = 7\nweight = 0.5\nparent = \"all\"\nmixer = \"dilated\"\n\
                [[model.tasks]]\nname = \"own\"\nmode = \"temporal\"\nmodel = \"mine\"\nparent = \"all\"\n\
                [[model.tasks]]\nname = \"all\"\nreduction = \"linear\"\n";
    let model = resolve(&parse(text), &facts()).unwrap().model;
    let forest = model.forest().unwrap();
    let list: Vec<(usize, &str)> = forest.list().iter().map(|(depth, task)| (*depth, task.name.as_str())).collect();
    assert_eq!(list, [(0, "temporal"), (0, "all"), (1, "week"), (1, "own")]);
    let template = |name: &str| match &forest.get(name).unwrap().part {
        Part::Template(template) => template.clone(),
        Part::Fuser { .. } => panic!("{name} is a template"),
    };
    let mixer = Mixer::Dilated;
    let model_name = None;
    assert_eq!(template("week"), TemplateConfig { mode: Mode::Spatial, depth: 2, tokens: 7, mixer, model: model_name });
    // What a task does not say is as in the preset's template of its mode.
    let mixer = Mixer::Retention;
    let own = TemplateConfig { mode: Mode::Temporal, depth: 4, tokens: 5, mixer, model: Some("mine".to_owned()) };
    assert_eq!(template("own"), own);
    assert_eq!(template("temporal").mixer, Mixer::Retention);
    // Written and read again it is the same.
    let again: ModelConfig = serde_json::from_str(&serde_json::to_string(&model).unwrap()).unwrap();
    assert_eq!(again, model);
    // A run.json from before there were tasks.
    let old: ModelConfig = serde_json::from_str(r#"{"d_model": 64, "preset": "spatial"}"#).unwrap();
    assert_eq!(old, ModelConfig { d_model: 64, preset: Preset::Spatial, ..ModelConfig::default() });
}

#[test]
fn old_and_new_names_of_mixers_mean_the_same() {
    let model = |mixer: &str| resolve(&parse(&format!("[model]\nmixer = \"{mixer}\"\n")), &facts()).unwrap().model;
    let names = [
        ("gated_ema", "retention", Mixer::GatedEma),
        ("retnet", "true_retention", Mixer::Retention),
        ("dilated", "dilated", Mixer::Dilated),
    ];
    for (new, old, mixer) in names {
        assert_eq!((model(new).mixer, mixer.name(), mixer.parameter_name()), (mixer, new, old));
        assert_eq!(model(old), model(new));
        // Manifests are written with the old names, which version 0.1 reads, and read with both.
        assert_eq!(serde_json::to_value(model(new)).unwrap()["mixer"], old);
        for name in [new, old] {
            let read: ModelConfig = serde_json::from_str(&format!(r#"{{"mixer": "{name}"}}"#)).unwrap();
            assert_eq!(read.mixer, mixer);
            let task = format!("[[model.tasks]]\nname = \"a\"\nmode = \"spatial\"\nmixer = \"{name}\"\n");
            let tasks = resolve(&parse(&task), &facts()).unwrap().model.tasks;
            assert!(matches!(&tasks.get("a").unwrap().part, Part::Template(template) if template.mixer == mixer));
        }
    }
    let wrong = mistakes("[model]\nmixer = \"mamba\"\n");
    assert!(wrong[0].contains("gated_ema, retnet, dilated"), "{wrong:?}");
}

#[test]
fn mistakes_in_tasks_have_their_place() {
    let of = |tasks: &str| mistakes(&format!("[model]\n{tasks}"));
    let only = |tasks: &str| -> String {
        let found = of(tasks);
        assert_eq!(found.len(), 1, "{found:?}");
        found[0].clone()
    };
    let task = |keys: &str| format!("[[model.tasks]]\nname = \"a\"\n{keys}");
    assert_eq!(
        only(&task("mode = \"spatial\"\ntoken = 3\n")),
        "conf/weather.toml:5:1: model.tasks.token: unknown key (did you mean `tokens`?)"
    );
    assert!(only(&task("")).contains("model.tasks.mode: missing; expected `mode` (a template"));
    assert!(only(&task("mode = \"temporl\"\n")).contains("did you mean `temporal`?"));
    assert!(only(&task("mode = \"spatial\"\nweight = 0\n")).contains("model.tasks.weight: 0 is out of range"));
    assert!(
        only(&task("reduction = \"mean\"\ndepth = 2\n")).contains("model.tasks.depth: a task with `reduction` joins")
    );
    assert!(only(&task("reduction = \"mean\"\n")).contains("model.tasks: \"a\" joins nothing"));
    assert!(
        only(&task("mode = \"spatial\"\nparent = \"b\"\n"))
            .contains("model.tasks: there is no task \"b\" (there are: a)")
    );
    let taken = "[[model.tasks]]\nname = \"spatial\"\nmode = \"spatial\"\n";
    assert!(only(taken).contains("already a task \"spatial\""));
    assert!(only("preset = \"none\"\n").contains("model.preset: there is no template"));
    assert!(only("tasks = 3\n").contains("expected a list of sections"));
    assert!(only("segments = [16, 30]\n").contains("first dilation 1"));
    assert!(only("dilations = [2, 4]\n").contains("conf/weather.toml:2:13: model.dilations: segments [16, 64]"));
    assert!(
        only(
            "mixer = \"retnte\"
"
        )
        .contains("did you mean `retnet`?")
    );
}

/// Rows of a table with one target, and what follows.
fn table(data: &str, rows: &str, rest: &str) -> String {
    format!("[data]\nfiles = \"a.csv\"\n{data}[data.rows]\nfeatures = \"a\"\ntargets = \"y\"\n{rows}{rest}")
}

#[test]
fn losses_have_names_and_what_they_need() {
    let at = |text: &str| resolve(&parse(text), &facts()).unwrap().train;
    assert_eq!(at("").loss, Loss::Huber);
    for (name, loss) in Loss::NAMES.iter().filter(|(_, loss)| *loss != Loss::CrossEntropy) {
        assert_eq!(at(&format!("[train]\nloss = \"{name}\"\n")).loss, *loss);
        assert_eq!(serde_json::to_value(loss).unwrap(), *name, "run.json says what the user says");
    }
    let text = "[train]\nloss = \"quantile\"\nlevels = [0.05, 0.5, 0.75]\ncell_weights = [[1, 2], [], [0.5]]\n";
    assert_eq!(at(text).quantile_levels(), [0.05, 0.5, 0.75]);
    assert_eq!(at(text).cell_weights, CellWeights::Axes(vec![vec![1.0, 2.0], vec![], vec![0.5]]));
    assert_eq!(at("[train]\ncell_weights = [1, 0]\n").cell_weights, CellWeights::Cells(vec![1.0, 0.0]));
    assert_eq!(at("").quantile_levels(), [0.0; 0]);

    let classes = table("", "target_kind = \"category\"\n", "[train]\nloss = \"cross_entropy\"\n");
    let Layout::Rows(rows) = resolve(&parse(&classes), &facts()).unwrap().data.unwrap().layout else { panic!() };
    assert!(rows.classes);
    // The one that is not said follows the other.
    for text in [
        table("", "target_kind = \"category\"\n", ""),
        table("", "target_kind = \"category\"\n", "[train]\nepochs = 3\n"),
        table("", "", "[train]\nloss = \"cross_entropy\"\n"),
    ] {
        let config = resolve(&parse(&text), &facts()).unwrap();
        assert_eq!(config.train.loss, Loss::CrossEntropy, "{text}");
        assert!(matches!(config.data.unwrap().layout, Layout::Rows(rows) if rows.classes), "{text}");
    }
    for (text, sentence) in [
        (
            "[train]\nloss = \"quantil\"\n".to_owned(),
            "train.loss: unknown value \"quantil\" (did you mean `quantile`?)",
        ),
        ("[train]\nlevels = [0.1, 0.5]\n".to_owned(), "train.levels: means nothing with train.loss = \"huber\""),
        ("[train]\ndegrees_of_freedom = 7\n".to_owned(), "train.degrees_of_freedom: means nothing with"),
        (
            "[train]\nloss = \"crps\"\nlevels = [0.1, 0.9]\n".to_owned(),
            "[0.1, 0.9] is out of range, expected at most 99",
        ),
        ("[train]\nloss = \"crps\"\nlevels = [0.5, 0.1]\n".to_owned(), "train.levels: [0.5, 0.1] is out of range"),
        (
            "[train]\nloss = \"crps\"\nlevels = [0.5, 1]\n".to_owned(),
            "1 is out of range, expected a number above 0 and below 1",
        ),
        (
            "[train]\ncell_weights = [0, 0]\n".to_owned(),
            "train.cell_weights: 0 is out of range, expected weights that are not all 0",
        ),
        ("[train]\ncell_weights = [-1]\n".to_owned(), "train.cell_weights: -1 is out of range"),
        (
            "[train]\ncell_weights = 3\n".to_owned(),
            "train.cell_weights: found the number 3, expected a list of numbers",
        ),
        (
            table("", "target_kind = \"number\"\n", "[train]\nloss = \"cross_entropy\"\n"),
            "train.loss: is \"cross_entropy\", but the target is a number",
        ),
        (
            table("", "target_kind = \"category\"\n", "[train]\nloss = \"huber\"\n"),
            "train.loss: is \"huber\", but the target is a category",
        ),
        (classes.replace("\"y\"", "[\"y\", \"z\"]"), "data.rows.target_kind: \"category\" takes one target column"),
        (classes.clone() + "[model]\noutput_range = [0, 1]\n", "model.output_range: means nothing with"),
        (classes.clone() + "cell_weights = [1]\n", "train.cell_weights: means nothing with"),
    ] {
        let found = mistakes(&text);
        assert!(found.iter().any(|line| line.contains(sentence)), "missing: {sentence}\nfound: {found:#?}");
    }
}

#[test]
fn a_default_gives_way_to_what_is_said() {
    let at = |text: &str| resolve(&parse(text), &facts()).unwrap();
    let model = |text: &str| {
        let model = at(&format!("[model]\n{text}")).model;
        (model.d_model, model.heads)
    };
    let usual = ModelConfig::default();
    for d_model in [50, 6, 7, 96] {
        let (width, heads) = model(&format!("d_model = {d_model}\n"));
        assert!(width == d_model && width.is_multiple_of(heads) && heads <= usual.heads, "{d_model}: {heads}");
    }
    for heads in [3, 5, 12] {
        let (width, found) = model(&format!("heads = {heads}\n"));
        assert!(found == heads && width.is_multiple_of(heads) && width >= usual.d_model, "{heads}: {width}");
    }
    let split = |text: &str| at(&table("", "", &format!("[data.split]\n{text}"))).data.unwrap().split;
    assert_eq!((split("val = 0.9\n").val, split("test = 0.9\n").test), (0.9, 0.9));
    assert!(split("val = 0.9\n").test < 0.1 && split("test = 0.9\n").val < 0.1);
    assert_eq!((split("val = 0.2\n").test, split("test = 0\n").val), (0.15, 0.15));
    let missing = |text: &str| at(&table(text, "", "")).data.unwrap().missing;
    assert_eq!(missing("missing_only = [\"x\"]\n"), ["x"]);
    assert!(missing("missing_only = []\n").is_empty());
    assert_eq!(missing("missing = [\"-999\", \"NA\"]\n")[..2], ["NA", "N/A"]);
    assert_eq!(missing("missing = [\"-999\", \"NA\"]\n").last().unwrap(), "-999");
    let both = mistakes(&table("missing = \"x\"\nmissing_only = \"y\"\n", "", ""));
    assert!(both.iter().any(|line| line.contains("data.missing_only: stands in place of")), "{both:?}");
}

#[test]
fn masks_and_weights_of_the_data() {
    let at = |text: &str| resolve(&parse(text), &facts()).unwrap().data.unwrap();
    assert_eq!(at(&table("", "", "")).mask, TargetMask::Finite);
    assert_eq!(at(&table("mask = \"value\"\nmask_value = -999\n", "", "")).mask, TargetMask::Value(-999.0));
    assert_eq!(at(&table("mask = \"none\"\nweight = \"w\"\n", "", "")).weight.as_deref(), Some("w"));
    let plain = serde_json::to_string(&at(&table("", "", ""))).unwrap();
    assert!(!plain.contains("mask") && !plain.contains("weight"), "what is staged already keeps its name: {plain}");
    for (data, sentence) in [
        ("mask = \"value\"\n", "data.mask_value: missing; expected the number that means \"missing\" in a target"),
        ("mask_value = 1\n", "data.mask_value: means nothing without data.mask = \"value\""),
        ("mask = \"nan\"\n", "data.mask: unknown value \"nan\""),
    ] {
        let found = mistakes(&table(data, "", ""));
        assert!(found.iter().any(|line| line.contains(sentence)), "missing: {sentence}\nfound: {found:#?}");
    }
    let windows = WEATHER.replace("units = ", "weight = \"w\"\nunits = ");
    assert!(mistakes(&windows)[0].contains("data.weight: needs [data.rows]"));
}

#[test]
fn sizes_follow_the_rows_where_none_is_given() {
    let by_rows = |text: &str| resolve(&parse(text), &facts()).unwrap().model.by_rows;
    assert!(by_rows("") && by_rows("[model]\ndropout = 0.2\ngate = \"tile\"\n"));
    assert!(!by_rows("[model]\npatch = [1, 2]\n") && !by_rows("[model]\nby_rows = false\n"));
    // As a run.json says it.
    assert!(by_rows("[model]\nby_rows = true\nd_model = 128\n"));
}

#[test]
fn units_are_those_of_inputs_that_are_numbers() {
    let with = |text: &str, more: &str| format!("{}\n[data.input_units]\n{more}\n", text.trim_end());
    let data = resolve(&parse(&with(WEATHER, "temp = \"°F\"")), &facts()).unwrap().data.unwrap();
    assert_eq!(data.input_units["temp"], "°F");
    for more in ["wind_dir = \"°\"", "origin = \"°F\"", "dew = \"°F\""] {
        let found = mistakes(&with(WEATHER, more));
        assert!(found.len() == 1 && found[0].contains("is no input that is a number"), "{found:?}");
    }
    assert!(mistakes(&with(WEATHER, "temp = 3"))[0].contains("data.input_units.temp: found"));
    let arrays = "[data]\nfiles = [\"a.npz\"]\n[data.arrays]\nx = \"x\"\n";
    assert!(resolve(&parse(&with(arrays, "\"x[3]\" = \"m\"")), &facts()).is_ok());
    assert_eq!(mistakes(&with(arrays, "y = \"m\"")).len(), 1);
    let rows = "[data]\nfiles = [\"a.csv\"]\n[data.rows]\nfeatures = [\"a\", { column = \"b\", kind = \"time\" }]\ntargets = [\"y\"]\n";
    assert_eq!(mistakes(&with(rows, "a = \"m\"\nb = \"s\"")).len(), 1);
}
