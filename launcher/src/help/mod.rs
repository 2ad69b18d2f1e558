//! `enn help`: topics and keys of the configuration, told by the pages (.md) of the repository, which are in the program.
//!
//! `topics` is the list of topics, whose text is in `crate::pages`, as is that about keys; `markdown` draws it for a terminal, and `keys` is
//! the list of keys. **Invariant:** there is no second text: what help says is what the pages say.

mod keys;
pub(crate) mod markdown;
mod topics;

use crate::{
    doctor::variables::{OF_TORCHRUN, VARIABLES},
    pages::key_texts::KeyTexts,
};
use enn_common::{config::error::nearest, exit::ExitCode};
use keys::ConfigKey;
use topics::{TOPICS, Topic, TopicText};

/// A command of the command line: its name and what it does.
#[derive(Debug, Clone)]
pub(crate) struct CommandBrief {
    pub(crate) name: String,
    pub(crate) about: String,
}

/// Returns the names of all topics.
pub(crate) fn topic_names() -> impl Iterator<Item = &'static str> {
    TOPICS.iter().map(|topic| topic.name)
}

/// Returns the names of all keys of the configuration.
pub(crate) fn key_names() -> Vec<String> {
    keys::all().into_iter().map(|key| key.name).collect()
}

/// Returns name and description of each topic.
pub(crate) fn topics_with_abouts() -> impl Iterator<Item = (&'static str, &'static str)> {
    TOPICS.iter().map(|topic| (topic.name, topic.about))
}

/// Returns the help on a word as Markdown: a topic, a key, a section of keys, or the beginning of keys; `None` where the word is none.
pub(crate) fn on(word: &str) -> Option<String> {
    let name = word.trim().to_lowercase().replace(['_', ' '], "-");
    if let Some(topic) = TOPICS.iter().find(|topic| topic.name == name) {
        return Some(of_topic(topic));
    }
    let wanted = word.trim().trim_start_matches('[').trim_end_matches(']').trim_end_matches(".*");
    let all = keys::all();
    if let Some(key) = all.iter().find(|key| key.name == wanted) {
        return Some(of_key(key));
    }
    let below = wanted.trim_end_matches('.');
    let section: Vec<&ConfigKey> =
        all.iter().filter(|key| key.name.strip_prefix(below).is_some_and(|rest| rest.starts_with('.'))).collect();
    if !section.is_empty() {
        return Some(key_list(&format!("Keys of `[{below}]`"), &section));
    }
    let named: Vec<&ConfigKey> = all.iter().filter(|key| key.name.rsplit('.').next() == Some(wanted)).collect();
    match named[..] {
        [] => None,
        [key] => Some(of_key(key)),
        _ => Some(key_list(&format!("Keys that are called `{wanted}`"), &named)),
    }
}

/// Returns the topic, the command or the key that a misspelt word may mean.
pub(crate) fn meant(word: &str, commands: &[String]) -> Option<String> {
    let keys = key_names();
    let mut words: Vec<&str> = Vec::new();
    // Of names that are equally near the first is taken.
    topic_names().for_each(|name| words.push(name));
    words.extend(commands.iter().chain(&keys).map(String::as_str));
    nearest(word, words)
}

/// Returns the topic that tells more about a command, if there is one.
pub(crate) fn beside(command: &str) -> Option<&'static str> {
    let topic = match command {
        "data" | "stage" => "datasets",
        "slurm" => "preemption",
        "run" | "warm" => "torchrun",
        "train" => "configuration",
        "ls" | "rm" | "gc" | "compare" | "mlflow" => "runs",
        "ckpt" => "checkpoints",
        "export" => "formats",
        "metrics" | "cv" | "evaluate" => "judging",
        "predict" | "serve" => "serving",
        "chaos" | "resize" | "drain" => "recovery",
        "logs" => "logs-of-runs",
        _ => return None,
    };
    topic_names().find(|name| *name == topic)
}

/// Returns the list of topics and commands as Markdown.
pub(crate) fn overview(commands: &[CommandBrief]) -> String {
    let mut text = "## Help\n\n    enn help TOPIC          # one of the topics below\n    enn help COMMAND        # the flags of a \
                    command, as enn COMMAND --help\n    enn help train.epochs   # a key of the configuration\n\n## Topics\n\n"
        .to_owned();
    text.push_str(&table("| | |", topics_with_abouts().map(|(name, about)| format!("| {name} | {about} |"))));
    text.push_str("\n## Commands\n\n");
    text.push_str(&table("| | |", commands.iter().map(|one| format!("| {} | {} |", one.name, escaped(&one.about)))));
    text
}

fn of_topic(topic: &Topic) -> String {
    match topic.text {
        TopicText::Sections(sections) => {
            let texts = sections.iter().filter_map(|(page, heading)| page.section(heading));
            let mut pages: Vec<&str> = sections.iter().map(|(page, _)| page.path).collect();
            pages.dedup();
            format!("{}\n\nMore: {}", texts.map(str::trim_end).collect::<Vec<_>>().join("\n\n"), pages.join(", "))
        }
        TopicText::Keys => {
            let all = keys::all();
            let set = "Every key can be set in the configuration file, below the head of its section, or with `--set KEY=VALUE`. \
                       `enn help KEY` describes one.";
            format!("{set}\n\n{}", key_list("All keys", &all.iter().collect::<Vec<_>>()))
        }
        TopicText::Environment => {
            let rows = VARIABLES.iter().chain(OF_TORCHRUN);
            let rows = rows.map(|one| format!("| {} | {} | {} |", one.name, one.reader, escaped(one.effect)));
            let text = table("| variable | read by | effect |", rows);
            format!("## Environment variables\n\n{text}\n`enn doctor --all` shows which of them are set.")
        }
        TopicText::ExitCodes => {
            let rows = ExitCode::ALL.iter().map(|(code, text)| format!("| {} | {} |", *code as u8, escaped(text)));
            format!("## Exit codes\n\n{}", table("| code | meaning |", rows))
        }
    }
}

fn key_list(title: &str, keys: &[&ConfigKey]) -> String {
    let rows = keys.iter().map(|key| {
        let default = key.default.as_deref().unwrap_or("");
        format!("| `{}` | {} | {} |", key.name, escaped(default), escaped(&key.expected))
    });
    format!("## {title}\n\n{}", table("| key | default | value |", rows))
}

fn of_key(key: &ConfigKey) -> String {
    let mut text = format!("## {}\n\n- value: {}\n", key.name, key.expected);
    let texts = KeyTexts::read();
    let description = texts.of(&key.name);
    let bare = |text: &str| text.trim_matches(['`', '"']).to_owned();
    let default_of_page = description.map_or("", |of| of.default.as_str());
    match (&key.default, default_of_page) {
        (None, "") => {}
        (Some(default), other) if !other.is_empty() && bare(other) != bare(default) => {
            text.push_str(&format!("- default: {default} – {other}\n"));
        }
        (Some(default), _) => text.push_str(&format!("- default: {default}\n")),
        (None, other) => text.push_str(&format!("- default: {other}\n")),
    }
    let (section, last) = key.name.rsplit_once('.').unwrap_or(("", &key.name));
    let place = if section.is_empty() { "at the top of the file".to_owned() } else { format!("in `[{section}]`") };
    text.push_str(&match &key.list {
        Some(list) => format!("- written: `{last} = …` in an item of `{list}`\n"),
        None => format!("- written: `{last} = …` {place}, or `--set {}=…`\n", key.name),
    });
    if let Some(description) = description {
        text.push_str(&format!("\n{}\n\nMore: {}\n", description.text, description.page));
    }
    text
}

/// Returns a table with this head.
fn table(head: &str, rows: impl Iterator<Item = String>) -> String {
    let columns = head.matches('|').count() - 1;
    let rule = "|---".repeat(columns) + "|";
    std::iter::once(head.to_owned()).chain([rule]).chain(rows).map(|line| line + "\n").collect()
}

/// Keeps text from being read as Markdown.
fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*").replace('<', "\\<").replace('_', "\\_")
}

#[cfg(test)]
mod tests {
    use super::{markdown::TextScreen, *};

    #[test]
    fn every_topic_is_there_and_is_text() {
        for topic in TOPICS {
            if let TopicText::Sections(sections) = topic.text {
                for (page, heading) in sections {
                    assert!(page.section(heading).is_some(), "{}: {} has no section {heading}", topic.name, page.path);
                }
            }
            for (width, has_colours) in [(40, false), (80, true), (120, false)] {
                let text = markdown::text(&on(topic.name).unwrap(), TextScreen { width, has_colours });
                assert!(text.lines().count() > 3, "{}: {text}", topic.name);
                let prose = text.lines().filter(|line| !line.starts_with("    "));
                for line in prose {
                    assert!(
                        !line.contains("](") && !line.contains("**") && !line.starts_with('|'),
                        "{}: {line}",
                        topic.name
                    );
                }
            }
        }
    }

    #[test]
    fn keys_are_found_by_name_by_section_and_by_their_last_part() {
        let epochs = on("train.epochs").unwrap();
        assert!(
            epochs.contains("a whole number from 0 to 10000000") && epochs.contains("--set train.epochs=…"),
            "{epochs}"
        );
        assert_eq!(on("epochs").unwrap(), epochs);
        assert!(on("[train]").unwrap().contains("train.lr") && on("train.").unwrap().contains("train.lr"));
        assert!(on("kind").is_none_or(|text| text.contains("kind")));
        assert_eq!(on("nothing-of-the-kind"), None);
        assert_eq!(meant("recovrey", &[]).as_deref(), Some("recovery"));
        assert_eq!(meant("train.epoch", &[]).as_deref(), Some("train.epochs"));
        assert_eq!(meant("comprae", &["compare".to_owned()]).as_deref(), Some("compare"));
    }
}
