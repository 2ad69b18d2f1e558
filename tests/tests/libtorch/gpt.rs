//! A user's own worker (examples/gpt) with real processes: what ranks change, what is learnt, what a killed rank costs.
//!
//! Needs `enn` and `gpt`, which `make build` makes, and libtorch on the library path, as `make test` sets it.

#![expect(clippy::unwrap_used, reason = "a test's helpers fail the test by panicking")]

use enn_common::checkpoint::{Checkpoint, latest};
use enn_tests::launch::{Ended, Place, end, enn, kill, until};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::{Command, Stdio},
};

/// Largest root mean square of the differences of weights after some steps whose sums were rounded in another order. A single weight whose
/// gradient is almost nothing may move by much of a step.
const ROUNDING_MAX: f32 = 1e-7;

/// Sentences of few words in an order of its own, the same in each call: what is learnt must not change with a page.
fn text() -> String {
    const WORDS: [&str; 16] = [
        "a", "worker", "of", "the", "launcher", "reads", "one", "row", "and", "writes", "what", "it", "predicts",
        "for", "each", "step",
    ];
    let mut state = 1_u32;
    let mut word = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        WORDS[(state >> 28) as usize]
    };
    let mut sentence = || (0..8).map(|_| word()).collect::<Vec<_>>().join(" ") + ".\n";
    (0..400).map(|_| sentence()).collect()
}

/// A place whose workers are gpt with these flags, its checkpoints in `checkpoints`.
fn place(flags: &str) -> Place {
    let gpt = enn().with_file_name("gpt");
    assert!(gpt.exists(), "{} is not there; run `make build`", gpt.display());
    let begin = "mkdir -p pids checkpoints; echo $$ > pids/${RANK:-0}.${ENN_ROUND:-0}";
    let place = Place::new(&format!(
        "{begin}\nexec {} --data text --device cpu --context 32 --checkpoints checkpoints {flags}",
        gpt.display()
    ));
    fs::write(place.path("text"), text()).unwrap();
    place
}

fn alone(place: &Place) -> Ended {
    good(started(place))
}

/// Without a launcher, to whatever end.
fn started(place: &Place) -> Ended {
    let mut command = Command::new("./worker.sh");
    command.current_dir(place.dir.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.env("OMP_NUM_THREADS", "1");
    end(command.spawn().unwrap())
}

fn good(ended: Ended) -> Ended {
    assert_eq!(ended.code, Some(0), "{}\n{}", ended.stdout, ended.stderr);
    ended
}

fn newest(place: &Place) -> Checkpoint {
    latest(&place.path("checkpoints")).found.unwrap()
}

/// Weights of the newest checkpoint, one after the other.
fn weights(place: &Place) -> Vec<f32> {
    let checkpoint = newest(place);
    let names = checkpoint.tensor_names().filter(|name| name.starts_with("model."));
    let bytes: Vec<u8> = names.flat_map(|name| checkpoint.tensor(name).unwrap().bytes).collect();
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().unwrap())).collect()
}

/// All tensors of the newest checkpoint.
fn state(place: &Place) -> BTreeMap<String, Vec<u8>> {
    let checkpoint = newest(place);
    checkpoint.tensor_names().map(|name| (name.to_owned(), checkpoint.tensor(name).unwrap().bytes)).collect()
}

/// The number after `word` in the last line that has it.
fn number(text: &str, word: &str) -> f64 {
    let line = text.lines().rfind(|line| line.contains(word)).unwrap_or_else(|| panic!("no {word} in {text}"));
    let after = line.split(word).last().unwrap().split_whitespace().next().unwrap();
    after.trim_end_matches(';').parse().unwrap_or_else(|_| panic!("{line}"))
}

#[test]
fn two_ranks_equal_one_rank_with_the_doubled_batch_and_one_that_accumulates() {
    let common = "--steps 6 --batch 8 --dropout 0.1 --sample 0";
    let one = place(common);
    let two = place(common);
    let parts = place(&format!("{common} --accumulation 4"));
    alone(&one);
    alone(&parts);
    good(two.run(&["--standalone", "--nproc-per-node", "2"]));
    let reference = weights(&one);
    assert!(reference.len() > 800_000);
    for other in [weights(&two), weights(&parts)] {
        assert_eq!(reference.len(), other.len());
        let squares: f32 = reference.iter().zip(&other).map(|(a, b)| (a - b).powi(2)).sum();
        let apart = (squares / reference.len() as f32).sqrt();
        assert!(apart < ROUNDING_MAX, "{apart}");
        assert!(other.iter().all(|weight| weight.is_finite()));
    }
}

#[test]
fn the_loss_falls_below_what_the_frequencies_of_bytes_explain_and_text_is_written() {
    let place = place("--steps 80 --batch 16 --sample 40 --log-every 10");
    let ended = alone(&place);
    let loss = number(&ended.stdout, "loss ");
    let unigram = number(&ended.stdout, "unigram ");
    assert!(loss < unigram - 0.1, "{loss} against {unigram}");
    let sample = ended.stdout.split_once("sample: ").unwrap().1;
    assert!(sample.contains('|') && sample.len() > 40, "{sample}");
}

#[test]
fn a_training_in_which_no_step_is_taken_any_more_ends_with_a_sentence_and_saves_nothing() {
    // Products of such weights are too large for f32; weights moved by the second rate are themselves.
    let cases = [
        ("1e30", "steps in a row up to step 80 were refused"),
        ("1e300", "is not finite after step 16,"),
        // The step itself was taken: its gradient is finite.
        ("1e300 --save-every 1", "is not finite after step 1,"),
    ];
    for (rate, told) in cases {
        let place = place(&format!("--steps 200 --batch 2 --sample 0 --precision fp32 --lr {rate}"));
        let ended = started(&place);
        assert_eq!(ended.code, Some(1), "{}\n{}", ended.stdout, ended.stderr);
        assert!(ended.stderr.contains(told) && ended.stderr.contains("hint: a smaller --lr"), "{}", ended.stderr);
        assert!(latest(&place.path("checkpoints")).found.is_none());
    }
}

#[test]
fn products_in_bf16_learn_too_and_go_on_from_a_checkpoint_with_the_same_bits() {
    learns_and_goes_on_with("bf16");
}

#[test]
fn products_in_fp16_and_their_loss_scale_do_as_well() {
    learns_and_goes_on_with("fp16");
}

fn learns_and_goes_on_with(precision: &str) {
    let flags = "--steps 60 --batch 16 --dropout 0.1 --sample 0 --log-every 10 --save-every 30";
    let place = place(&format!("--precision {precision} {flags}"));
    let whole = alone(&place);
    assert!(whole.stdout.contains(&format!("\n{precision}: ")), "{}", whole.stdout);
    let loss = number(&whole.stdout, "loss ");
    let unigram = number(&whole.stdout, "unigram ");
    assert!(loss < unigram - 0.1, "{loss} against {unigram}");
    let end = state(&place);
    assert_eq!(end.keys().any(|name| name == "precision.loss_scale"), precision == "fp16", "{:?}", end.keys());
    fs::remove_dir_all(newest(&place).dir()).unwrap();
    let rest = alone(&place);
    assert!(rest.stdout.contains("from step 30;"), "{}", rest.stdout);
    let differs = state(&place).into_iter().find(|(name, bytes)| end.get(name) != Some(bytes));
    assert!(differs.is_none(), "the same bits as without the break: {:?}", differs.map(|(name, _)| name));
}

#[test]
fn a_killed_rank_costs_the_steps_since_the_checkpoint_and_nothing_else() {
    let common = "--steps 30 --batch 8 --dropout 0.1 --sample 0 --save-every 5";
    let calm = place(common);
    let struck = place(common);
    good(calm.run(&["--standalone", "--nproc-per-node", "2"]));
    let child = struck.command(&["--standalone", "--nproc-per-node=2", "--max-restarts=1"]).spawn().unwrap();
    until("a checkpoint", || latest(&struck.path("checkpoints")).found.is_some());
    let victim = fs::read_dir(struck.path("pids")).unwrap().flatten().map(|entry| entry.path());
    let victim = victim.min_by_key(|path| std::cmp::Reverse(rank_of(path))).unwrap();
    let pid = fs::read_to_string(victim).unwrap().trim().parse().unwrap();
    kill(pid, nix::sys::signal::Signal::SIGKILL);
    let ended = good(end(child));
    assert!(number(&ended.stdout, "from step ") >= 5.0, "{}", ended.stdout);
    assert_eq!(fs::read_dir(struck.path("pids")).unwrap().count(), 4, "two rounds of two workers");
    assert_eq!(newest(&struck).manifest().unwrap().step, 30);
    assert_eq!(weights(&calm), weights(&struck), "the same bits as without the kill");
}

/// The rank in "RANK.ROUND".
fn rank_of(path: &Path) -> u32 {
    path.file_stem().unwrap().to_str().unwrap().parse().unwrap()
}
