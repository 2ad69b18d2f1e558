//! The blocks of code in the pages, and what stands in front of them about how they are tested.
//!
//! An indented block is a list of commands for a shell. A fenced block has a language. Comments in front of a block, each on a line of its
//! own, say what differs from the rule that it is run:
//!
//! | comment | meaning |
//! |---|---|
//! | `<!-- not run: REASON -->` | the block is only checked |
//! | ``<!-- not run `WORD`, `WORD`: REASON -->`` | lines that contain one of the words are only checked |
//! | ``<!-- fails `WORD`: REASON -->`` | lines that contain the word end with an error |
//! | ``<!-- until `WORD`, `TEXT`: REASON -->`` | lines that contain the word are stopped by SIGTERM when they have printed the text |
//! | `<!-- run by PATH -->` | the block is run by this file |
//! | `<!-- file NAME -->` | the block is written to this file, which commands below it use |
//! | `<!-- output -->` | the block is what the commands before it print, up to numbers |

use crate::pages::Page;

/// Comment of a block, without `<!--` and `-->`.
#[derive(Debug, PartialEq, Eq)]
pub enum Mark {
    /// `not run`: lines that contain one of the words (all lines if there are none), and why.
    NotRun { words: Vec<String>, reason: String },
    /// `fails`: lines that contain one of the words.
    Fails { words: Vec<String> },
    /// `until`: a word of the line, and what it prints before it is stopped.
    Until { word: String, printed: String },
    /// `run by`: a path in the repository.
    RunBy(String),
    /// `file`: a name.
    File(String),
    /// `output`.
    Output,
}

/// Block of code.
#[derive(Debug)]
pub struct Block {
    /// Line of its first line of code.
    pub line: usize,
    /// Language of its fence; `None` if it is indented.
    pub language: Option<String>,
    /// Code, without indentation of an indented block.
    pub text: String,
    /// Comments in front of it.
    pub marks: Vec<Mark>,
}

impl Block {
    /// Whether it is a list of commands.
    #[must_use]
    pub fn is_shell(&self) -> bool {
        self.language.is_none()
    }

    /// Why a line of it is not run, if it is not.
    #[must_use]
    pub fn why_not_run(&self, line: &str) -> Option<&str> {
        self.marks.iter().find_map(|mark| match mark {
            Mark::NotRun { words, reason } if words.is_empty() || words.iter().any(|word| line.contains(word)) => {
                Some(reason.as_str())
            }
            _ => None,
        })
    }

    /// Whether a line of it ends with an error.
    #[must_use]
    pub fn fails(&self, line: &str) -> bool {
        let is_it = |mark: &Mark| matches!(mark, Mark::Fails { words } if words.iter().any(|word| line.contains(word)));
        self.marks.iter().any(is_it)
    }

    /// What a line of it prints before it is stopped.
    #[must_use]
    pub fn until(&self, line: &str) -> Option<&str> {
        self.marks.iter().find_map(|mark| match mark {
            Mark::Until { word, printed } if line.contains(word) => Some(printed.as_str()),
            _ => None,
        })
    }

    /// File to which it is written.
    #[must_use]
    pub fn file(&self) -> Option<&str> {
        self.marks.iter().find_map(|mark| if let Mark::File(name) = mark { Some(name.as_str()) } else { None })
    }

    /// Lines of a list of commands with their numbers: continued lines joined, comments and empty lines left out.
    #[must_use]
    pub fn commands(&self) -> Vec<(usize, String)> {
        let mut found: Vec<(usize, String)> = Vec::new();
        let mut is_continued = false;
        for (index, line) in self.text.lines().enumerate() {
            let code = line.split_once(" #").map_or(line, |(code, _)| code).trim();
            let (code, continues) = code.strip_suffix('\\').map_or((code, false), |code| (code.trim_end(), true));
            match found.last_mut() {
                Some((_, before)) if is_continued => before.extend([" ", code]),
                _ if code.is_empty() || code.starts_with('#') => {}
                _ => found.push((self.line + index, code.to_owned())),
            }
            is_continued = continues;
        }
        found
    }
}

/// The simple commands of a line: its parts between `&&`, `;` and `|`, each as words, without variables, `time` and `srun` in front.
#[must_use]
pub fn simple_commands(line: &str) -> Vec<Vec<&str>> {
    let mut parts = vec![Vec::new()];
    for word in line.split_whitespace() {
        if matches!(word, "&&" | ";" | "|") {
            parts.push(Vec::new());
        } else {
            let (word, ends) = word.strip_suffix(';').map_or((word, false), |word| (word, true));
            if let Some(part) = parts.last_mut() {
                part.push(word);
            }
            if ends {
                parts.push(Vec::new());
            }
        }
    }
    parts.into_iter().filter(|part| !part.is_empty()).map(bare).collect()
}

/// A simple command without what stands in front of its program. What only sets variables stays.
fn bare(part: Vec<&str>) -> Vec<&str> {
    let mut is_srun = false;
    let is_before = |word: &&&str| {
        is_srun |= **word == "srun";
        matches!(**word, "time" | "srun") || is_assignment(word) || (is_srun && word.starts_with("--"))
    };
    let before = part.iter().take_while(is_before).count();
    if before == part.len() { part } else { part[before..].to_vec() }
}

fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_')
    })
}

impl Page {
    /// Its blocks of code, or what is wrong with the comment in front of one.
    ///
    /// # Errors
    /// A sentence for each comment that cannot be read, or that stands in front of no block.
    pub fn blocks(&self) -> Result<Vec<Block>, Vec<String>> {
        let mut reader =
            Reader { page: self, found: Vec::new(), marks: Vec::new(), unknown: Vec::new(), wrong: Vec::new() };
        let lines: Vec<&str> = self.text.lines().collect();
        let mut at = 0;
        while at < lines.len() {
            at = reader.read(&lines, at);
        }
        reader.no_marks(lines.len());
        if reader.wrong.is_empty() { Ok(reader.found) } else { Err(reader.wrong) }
    }
}

struct Reader<'a> {
    page: &'a Page,
    found: Vec<Block>,
    marks: Vec<Mark>,
    unknown: Vec<String>,
    wrong: Vec<String>,
}

impl Reader<'_> {
    /// Reads what begins at a line, and returns the line behind it.
    fn read(&mut self, lines: &[&str], at: usize) -> usize {
        let line = lines[at];
        if let Some(language) = line.trim_start().strip_prefix("```") {
            let length = lines[at + 1..].iter().take_while(|line| !line.trim_start().starts_with("```")).count();
            self.block(at + 1, Some(language.trim().to_owned()), &lines[at + 1..at + 1 + length]);
            at + length + 2
        } else if line.starts_with("    ") && (at == 0 || lines[at - 1].trim().is_empty()) {
            // A blank line belongs to the block if the block goes on behind it.
            let is_code = |index: usize| lines.get(index).is_some_and(|line| line.starts_with("    "));
            let is_gap = |index: usize| lines[index].is_empty() && is_code(index + 1);
            let length = (at..lines.len()).take_while(|index| is_code(*index) || is_gap(*index)).count();
            let code: Vec<&str> = lines[at..at + length].iter().map(|line| line.get(4..).unwrap_or_default()).collect();
            self.block(at, None, &code);
            at + length
        } else if let Some(comment) = line.strip_prefix("<!--").and_then(|line| line.trim_end().strip_suffix("-->")) {
            match mark(comment.trim()) {
                Some(mark) => self.marks.push(mark),
                // Comments about other things are no business of blocks.
                None => self.unknown.push(format!("{}: unknown comment {line}", self.page.at(at + 1))),
            }
            at + 1
        } else {
            if !line.trim().is_empty() {
                self.no_marks(at);
            }
            at + 1
        }
    }

    fn block(&mut self, at: usize, language: Option<String>, code: &[&str]) {
        self.wrong.append(&mut self.unknown);
        let text = code.iter().flat_map(|line| [*line, "\n"]).collect();
        self.found.push(Block { line: at + 1, language, text, marks: std::mem::take(&mut self.marks) });
    }

    fn no_marks(&mut self, at: usize) {
        self.unknown.clear();
        if !self.marks.is_empty() {
            self.wrong.push(format!("{}: a comment about a block, and no block behind it", self.page.at(at)));
            self.marks.clear();
        }
    }
}

fn mark(comment: &str) -> Option<Mark> {
    if comment == "output" {
        return Some(Mark::Output);
    }
    if let Some(path) = comment.strip_prefix("run by ") {
        return Some(Mark::RunBy(path.to_owned()));
    }
    if let Some(name) = comment.strip_prefix("file ") {
        return Some(Mark::File(name.to_owned()));
    }
    let (head, reason) = comment.split_once(": ")?;
    let words: Vec<String> = head.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let verb = head.split('`').next()?.trim();
    match (verb, words.as_slice()) {
        _ if reason.is_empty() => None,
        ("not run", _) => Some(Mark::NotRun { words, reason: reason.to_owned() }),
        ("fails", [_, ..]) => Some(Mark::Fails { words }),
        ("until", [word, printed]) => Some(Mark::Until { word: word.clone(), printed: printed.clone() }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn page(text: &str) -> Page {
        Page { path: PathBuf::from("a.md"), text: text.to_owned(), prose: String::new() }
    }

    #[test]
    fn blocks_have_the_comments_in_front_of_them() {
        let text = "# A\n\n<!-- not run `s3`, `az`: no store -->\n<!-- fails `x=1`: to show the error -->\n\n    enn a s3://b   # c\n    \
                    enn b \\\n      --x=1\n\n    enn c\n\nText.\n\n<!-- output -->\n```text\nd\n```\n<!-- file a.toml -->\n```toml\ne = 1\n```\n";
        let blocks = page(text).blocks().unwrap();
        assert_eq!(blocks.len(), 3, "{blocks:?}");
        let commands =
            [(6, "enn a s3://b"), (7, "enn b --x=1"), (10, "enn c")].map(|(line, text)| (line, text.to_owned()));
        assert_eq!(blocks[0].commands(), commands);
        assert!(blocks[0].is_shell() && blocks[0].fails("enn b --x=1") && !blocks[0].fails("enn c"));
        assert_eq!([blocks[0].why_not_run("enn a s3://b"), blocks[0].why_not_run("enn c")], [Some("no store"), None]);
        assert_eq!((blocks[1].line, blocks[1].marks.as_slice()), (16, &[Mark::Output][..]));
        assert_eq!((blocks[2].file(), blocks[2].text.as_str()), (Some("a.toml"), "e = 1\n"));
    }

    #[test]
    fn comments_that_say_nothing_are_refused() {
        for text in
            ["<!-- not run -->\n\n    enn\n", "<!-- not run: -->\n\n    enn\n", "<!-- until `a`: b -->\n\n    enn\n"]
        {
            assert!(page(text).blocks().unwrap_err()[0].contains("unknown comment"), "{text}");
        }
        for text in ["<!-- output -->\n\nText.\n\n    enn\n", "    enn\n\n<!-- output -->\n"] {
            assert!(page(text).blocks().unwrap_err()[0].contains("no block behind it"), "{text}");
        }
    }

    #[test]
    fn a_line_is_divided_into_commands() {
        assert_eq!(
            simple_commands("A=b time enn x; srun --n=1 enn y && git z"),
            [vec!["enn", "x"], vec!["enn", "y"], vec!["git", "z"]]
        );
        assert_eq!(simple_commands("enn run --set a=1 | cat"), [vec!["enn", "run", "--set", "a=1"], vec!["cat"]]);
        assert_eq!(simple_commands("A=b"), [vec!["A=b"]]);
    }
}
