//! Flags that a newer torchrun has and this program does not: they are removed with a warning, so that a command line
//! written for another release still runs its program.
//!
//! It is unknown whether the word after such a flag is its value. Both readings are tried, for every such flag; a command line
//! is accepted only when exactly one reading leads to a program that exists. **Invariant:** the program is never
//! guessed: where two readings lead to one, or none does, that is an error. So the program is the one that torchrun would run.

use super::{RunError, program::is_module};
use crate::facts::Facts;
use clap::Command;
use std::{collections::BTreeSet, ffi::OsString, path::Path};

/// Limit on the readings that are tried: 6 unknown flags, each with a word after it.
const READINGS_MAX: usize = 64;
/// A typo may change 1 letter in `TYPO_PART` of a name, and at least `TYPO_LEAST`.
const TYPO_PART: usize = 4;
const TYPO_LEAST: usize = 1;

/// A command line without its unknown flags.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecognizedWords {
    pub words: Vec<OsString>,
    /// Notes for the user about removed flags, one line each.
    pub notes: Vec<String>,
}

/// Removes unknown flags from `words`, whose flags begin at `first`. A mistyped flag stays, so that the parser reports it.
/// `None`: nothing is unknown.
///
/// # Errors
/// It is ambiguous which word is the program.
pub fn remove_unknown_flags(
    words: &[OsString],
    first: usize,
    command: &Command,
    facts: &Facts,
) -> Result<Option<RecognizedWords>, RunError> {
    let line = CommandLine { words, flags: flags(command), facts };
    let mut readings = Vec::new();
    let given = modes_of_variables(facts);
    let unknown = |reading: &Reading| !reading.unknown.is_empty();
    if let Err(mistyped) = line.read(Reading { at: first, given, unknown: Vec::new() }, &mut readings) {
        return Ok(unknown(&mistyped).then(|| line.without(&mistyped)));
    }
    let (fits, others): (Vec<_>, Vec<_>) = readings.into_iter().partition(|reading| line.is_program(reading));
    match (&fits[..], others.first()) {
        ([only], _) if unknown(only) => Ok(Some(line.without(only))),
        ([one, .., other], _) => Err(line.ambiguous(one, other)),
        ([], Some(reading)) if unknown(reading) => Err(line.no_program(reading, &others)),
        _ => Ok(None),
    }
}

struct Flag {
    /// Long name without the leading dashes.
    name: String,
    short: Option<char>,
    takes_value: bool,
}

fn flags(command: &Command) -> Vec<Flag> {
    let flag = |argument: &clap::Arg| {
        let name = argument.get_long()?.to_owned();
        Some(Flag { name, short: argument.get_short(), takes_value: argument.get_action().takes_values() })
    };
    let built_in = |name: &str, short| Flag { name: name.to_owned(), short: Some(short), takes_value: false };
    let own = command.get_arguments().filter_map(flag);
    own.chain([built_in("help", 'h'), built_in("version", 'V')]).collect()
}

/// Flags that determine how the program is named, and their variables.
const MODES: [(&str, &str); 3] =
    [("module", "PET_MODULE"), ("no-python", "PET_NO_PYTHON"), ("run-path", "PET_RUN_PATH")];

fn modes_of_variables(facts: &Facts) -> BTreeSet<String> {
    let number = |variable: &str| facts.pet.get(variable)?.trim().parse::<i64>().ok();
    let set = MODES.iter().filter(|(_, variable)| number(variable).is_some_and(|number| number != 0));
    set.map(|(name, _)| (*name).to_owned()).collect()
}

/// One interpretation of the words before the program.
#[derive(Debug, Clone)]
struct Reading {
    /// Number of words interpreted so far; in the end, the program's index.
    at: usize,
    /// Names of the known flags so far.
    given: BTreeSet<String>,
    /// Unknown flags with their values.
    unknown: Vec<UnknownFlag>,
}

#[derive(Debug, Clone, Copy)]
struct UnknownFlag {
    at: usize,
    words: usize,
}

impl Reading {
    fn take(&mut self, taken: UnknownFlag) {
        self.unknown.push(taken);
        self.at += taken.words;
    }
}

/// Whether a word is the value of the flag before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Never,
    Perhaps,
    Always,
}

enum LongFlag<'a> {
    Known(&'a Flag),
    Mistyped,
    Unknown,
}

struct CommandLine<'a> {
    words: &'a [OsString],
    flags: Vec<Flag>,
    facts: &'a Facts,
}

impl CommandLine<'_> {
    /// Follows a reading to the program, and all readings that branch off it.
    ///
    /// # Errors
    /// The reading that reached a mistyped flag.
    fn read(&self, mut reading: Reading, readings: &mut Vec<Reading>) -> Result<(), Reading> {
        while let Some(word) = self.words.get(reading.at) {
            // A word that is not UTF-8 is no flag.
            let word = word.to_str().unwrap_or_default();
            if word == "--" {
                reading.at += 1;
                break;
            }
            if let Some(long) = word.strip_prefix("--") {
                let name = long.split('=').next().unwrap_or_default();
                match self.name(name) {
                    LongFlag::Mistyped => return Err(reading),
                    LongFlag::Known(flag) => {
                        reading.given.insert(flag.name.clone());
                        reading.at += if flag.takes_value && !long.contains('=') { 2 } else { 1 };
                    }
                    LongFlag::Unknown => {
                        let at = reading.at;
                        let value = if long.contains('=') { Value::Never } else { self.value(at + 1) };
                        if value == Value::Perhaps {
                            let mut other = reading.clone();
                            other.take(UnknownFlag { at, words: 2 });
                            self.read(other, readings)?;
                        }
                        reading.take(UnknownFlag { at, words: if value == Value::Always { 2 } else { 1 } });
                    }
                }
            } else if word.len() > 1 && word.starts_with('-') {
                match self.short(&word[1..], &mut reading.given) {
                    Some(words) => reading.at += words,
                    None => return Err(reading),
                }
            } else {
                break;
            }
        }
        if readings.len() >= READINGS_MAX {
            return Err(Reading { unknown: Vec::new(), ..reading });
        }
        readings.push(reading);
        Ok(())
    }

    fn name(&self, typed: &str) -> LongFlag<'_> {
        let typed = typed.replace('_', "-");
        if let Some(flag) = self.flags.iter().find(|flag| flag.name == typed) {
            return LongFlag::Known(flag);
        }
        let mut begins = self.flags.iter().filter(|flag| flag.name.starts_with(&typed));
        match (begins.next(), begins.next()) {
            (Some(flag), None) => return LongFlag::Known(flag),
            (Some(_), Some(_)) => return LongFlag::Mistyped,
            _ => {}
        }
        let close = |flag: &Flag| {
            let letters = (flag.name.len() / TYPO_PART).max(TYPO_LEAST);
            strsim::damerau_levenshtein(&flag.name, &typed) <= letters
        };
        if typed.is_empty() || self.flags.iter().any(close) { LongFlag::Mistyped } else { LongFlag::Unknown }
    }

    /// Returns the number of words of short flags in one word: `-m`, `-r 3`, `-r3`.
    fn short(&self, letters: &str, given: &mut BTreeSet<String>) -> Option<usize> {
        for (at, letter) in letters.char_indices() {
            let flag = self.flags.iter().find(|flag| flag.short == Some(letter))?;
            if flag.takes_value {
                return Some(if at + letter.len_utf8() < letters.len() { 1 } else { 2 });
            }
            given.insert(flag.name.clone());
        }
        Some(1)
    }

    /// Returns whether a word can be the value of the flag before it: as in argparse, a word that looks like a flag cannot, except a
    /// negative number, which must be a value.
    fn value(&self, at: usize) -> Value {
        let Some(word) = self.words.get(at) else { return Value::Never };
        let word = word.to_str().unwrap_or_default();
        if !word.starts_with('-') || word == "-" {
            return Value::Perhaps;
        }
        if word.parse::<f64>().is_ok() { Value::Always } else { Value::Never }
    }

    /// Returns whether a program exists where a reading ends.
    fn is_program(&self, reading: &Reading) -> bool {
        let Some(word) = self.words.get(reading.at) else { return false };
        let is_given = |name: &str| reading.given.contains(name) && !reading.given.contains("run-path");
        if is_given("no-python") {
            return self.facts.executable(word).is_some();
        }
        if is_given("module") {
            return word.to_str().is_some_and(is_module);
        }
        word == "-" || self.facts.cwd.join(word).exists()
    }

    fn without(&self, reading: &Reading) -> RecognizedWords {
        let left_out = |at: usize| reading.unknown.iter().any(|taken| (taken.at..taken.at + taken.words).contains(&at));
        let kept = self.words.iter().enumerate().filter(|(at, _)| !left_out(*at));
        let notes = reading.unknown.iter().map(|taken| {
            let flag = self.word(taken.at);
            match (taken.words, flag.split_once('=')) {
                (_, Some((name, value))) => {
                    format!("{name} is not known to this version of enn: it and its value \"{value}\" have no effect")
                }
                (2, None) => format!(
                    "{flag} is not known to this version of enn: it and the word behind it, \"{}\", which was taken for its value, \
                     have no effect",
                    self.word(taken.at + 1)
                ),
                _ => format!(
                    "{flag} is not known to this version of enn and has no effect; it was taken for a flag without a value"
                ),
            }
        });
        RecognizedWords { words: kept.map(|(_, word)| word.clone()).collect(), notes: notes.collect() }
    }

    /// Returns the index of the first unknown flag in which two readings differ.
    fn doubtful(one: &Reading, other: &Reading) -> usize {
        let differ = one.unknown.iter().zip(&other.unknown).find(|(one, other)| one.words != other.words);
        differ.map_or(one.unknown[0].at, |(one, _)| one.at)
    }

    fn ambiguous(&self, one: &Reading, other: &Reading) -> RunError {
        let at = Self::doubtful(one, other);
        let value = self.word(at + 1);
        let (first, second) = if one.at < other.at { (one, other) } else { (other, one) };
        RunError::UnknownFlag {
            flag: self.word(at),
            found: format!(
                "both {} and {} can be the program",
                shown(&self.word(first.at)),
                shown(&self.word(second.at))
            ),
            hint: format!("write {}={value} if that is its value, or put -- before the program", self.word(at)),
        }
    }

    fn no_program(&self, reading: &Reading, all: &[Reading]) -> RunError {
        let flag = self.word(reading.unknown.last().map_or(0, |taken| taken.at));
        let mut programs: Vec<String> = Vec::new();
        for word in all.iter().filter_map(|reading| self.words.get(reading.at)) {
            let word = shown(&word.to_string_lossy());
            if !programs.contains(&word) {
                programs.push(word);
            }
        }
        programs.reverse();
        let found = if programs.is_empty() {
            "no program follows it".to_owned()
        } else {
            format!("found no program called {}", programs.join(" or "))
        };
        let hint = format!(
            "write {flag}=VALUE if it has a value, and -- before the program if it has none; check the program's path"
        );
        RunError::UnknownFlag { flag, found, hint }
    }

    fn word(&self, at: usize) -> String {
        self.words.get(at).map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
    }
}

fn shown(program: &str) -> String {
    Path::new(program).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::torchrun::{EnnFlags, Flags};
    use clap::{CommandFactory, Parser};
    use std::fs;

    #[derive(Debug, Parser)]
    #[command(infer_long_args = true)]
    struct Parsed {
        #[command(flatten)]
        _flags: Flags,
        #[command(flatten)]
        _own: EnnFlags,
    }

    struct Desk {
        _dir: tempfile::TempDir,
        facts: Facts,
    }

    impl Desk {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            for name in ["train.py", "config.yaml"] {
                fs::write(dir.path().join(name), "").unwrap();
            }
            let mut facts = Facts::gather();
            facts.cwd = dir.path().to_owned();
            facts.pet.clear();
            Self { _dir: dir, facts }
        }

        fn read(&self, words: &str) -> Result<Option<RecognizedWords>, RunError> {
            let words: Vec<OsString> = words.split_whitespace().map(Into::into).collect();
            remove_unknown_flags(&words, 0, &Parsed::command(), &self.facts)
        }

        fn left(&self, words: &str) -> (String, Vec<String>) {
            let known = self.read(words).unwrap().unwrap_or_else(|| panic!("{words}"));
            let left: Vec<&str> = known.words.iter().map(|word| word.to_str().unwrap()).collect();
            (left.join(" "), known.notes)
        }
    }

    #[test]
    fn unknown_flags_are_set_aside_and_said() {
        let desk = Desk::new();
        let left = |words: &str| desk.left(words).0;
        assert_eq!(left("--cool-new train.py --cool-new a"), "train.py --cool-new a");
        assert_eq!(left("--cool_new --nnodes 1 train.py"), "--nnodes 1 train.py");
        assert_eq!(left("--cool-new 3 train.py --x"), "train.py --x");
        assert_eq!(left("--cool-new -1.5 train.py"), "train.py");
        assert_eq!(left("--cool-new=config.yaml -r3 -t 1 train.py"), "-r3 -t 1 train.py");
        assert_eq!(left("--cool-new some --nproc 2 --other-new thing -- train.py"), "--nproc 2 -- train.py");
        assert_eq!(left("--cool-new -m package.main"), "-m package.main");
        assert_eq!(left("-m --cool-new 3 package.main 4"), "-m package.main 4");
        assert_eq!(left("--no-python --cool-new few sh -c x"), "--no-python sh -c x");
        let notes = desk.left("--cool-new=3 --other-new 4 --third-new --nnodes 1 train.py").1;
        assert_eq!(
            notes,
            [
                "--cool-new is not known to this version of enn: it and its value \"3\" have no effect",
                "--other-new is not known to this version of enn: it and the word behind it, \"4\", which was taken for its value, \
                 have no effect",
                "--third-new is not known to this version of enn and has no effect; it was taken for a flag without a value",
            ]
        );
    }

    #[test]
    fn a_flag_that_is_mistyped_or_cut_too_short_is_left_to_the_parser() {
        let desk = Desk::new();
        for words in [
            "--nproc-per-nodes 2 train.py",
            "--nporc-per-node=2 train.py",
            "--nproc_pernode 2 train.py",
            "--te 3 train.py",
            "--rdzv x train.py",
            "--hang_timeout 3 train.py",
            "--hang-timout 3 train.py",
            "--standalon train.py",
            "-x train.py",
            "--nnodes 1 train.py",
        ] {
            let read = desk.read(words).unwrap_or_else(|error| panic!("{words}: {error}"));
            assert_eq!(read, None, "{words}");
        }
        assert_eq!(desk.left("--cool-new 3 --nnode-s 1 train.py").0, "--nnode-s 1 train.py", "the parser comes to it");
    }

    #[test]
    fn a_program_is_never_guessed() {
        let desk = Desk::new();
        let error = |words: &str| desk.read(words).expect_err(words).to_string();
        let both = error("--cool-new config.yaml train.py");
        assert_eq!(
            both,
            "--cool-new is not known to this version of enn, and both config.yaml and train.py can be the program\n\
             hint: write --cool-new=config.yaml if that is its value, or put -- before the program"
        );
        assert!(error("-m --cool-new some.value package.main").contains("both some.value and package.main"));
        let none = error("--cool-new 3 trian.py");
        assert!(none.contains("found no program called 3 or trian.py\nhint: "), "{none}");
        assert!(error("--cool-new a b train.py").contains("found no program called a or b\nhint: "));
        assert!(error("--cool-new").contains("no program follows it"));
        // The hints work.
        assert_eq!(desk.left("--cool-new=config.yaml train.py").0, "train.py");
        assert_eq!(desk.left("--cool-new -- train.py config.yaml").0, "-- train.py config.yaml");
    }
}
