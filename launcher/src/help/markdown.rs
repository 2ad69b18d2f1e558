//! Markdown of the pages as text for a terminal: wrapped, without markup, tables as columns or, where they do not fit, as lists.

use enn_common::shown;
use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// Columns between two columns of a table, and of indents.
const GAP: usize = 2;
/// Least width of the last column of a table; below it a table becomes a list.
const LAST_COLUMN_MIN: usize = 24;
/// Least width of text.
const WIDTH_MIN: usize = 30;
const BOLD: &str = "\u{1b}[1m";
const CYAN: &str = "\u{1b}[36m";
const RESET: &str = "\u{1b}[0m";

/// How text is written.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextScreen {
    /// Columns of a line.
    pub(crate) width: usize,
    /// Whether bold text and code are marked by colours; otherwise code keeps its backticks.
    pub(crate) has_colours: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TextStyle {
    Plain,
    Bold,
    Code,
}

/// Characters with their styles.
type Inline = Vec<(char, TextStyle)>;

/// A block of a page.
#[derive(Debug)]
enum MarkdownBlock {
    Heading(Inline),
    /// A paragraph, or an item of a list, which begins with a mark; `depth` is that of the lists around it.
    Text {
        text: Inline,
        depth: usize,
        mark: Option<String>,
    },
    Code(String),
    Table {
        head: Vec<Inline>,
        rows: Vec<Vec<Inline>>,
    },
}

/// Formats Markdown. The text is a part of this program; control characters are escaped all the same.
pub(crate) fn text(markdown: &str, screen: TextScreen) -> String {
    let screen = TextScreen { width: screen.width.max(WIDTH_MIN), ..screen };
    let mut lines: Vec<String> = Vec::new();
    let mut is_after_item = false;
    for block in blocks(markdown) {
        let is_item = matches!(&block, MarkdownBlock::Text { mark: Some(_), .. });
        // Items of a list stand together.
        if !(lines.is_empty() || is_item && is_after_item) {
            lines.push(String::new());
        }
        is_after_item = is_item;
        lines.extend(drawn(block, screen));
    }
    lines.join("\n")
}

fn drawn(block: MarkdownBlock, screen: TextScreen) -> Vec<String> {
    match block {
        MarkdownBlock::Heading(text) => {
            let bold = text.into_iter().map(|(one, _)| (one, TextStyle::Bold)).collect::<Inline>();
            wrapped(&bold, screen.width).iter().map(|line| painted(line, screen)).collect()
        }
        MarkdownBlock::Text { text, depth, mark } => {
            let indent = GAP * depth.saturating_sub(usize::from(mark.is_some()));
            let mark = mark.unwrap_or_default();
            let hanging = indent + mark.chars().count();
            let lines = wrapped(&text, screen.width.saturating_sub(hanging).max(WIDTH_MIN / 2));
            let first = format!("{:indent$}{mark}", "");
            let begin = |at: usize| if at == 0 { first.clone() } else { " ".repeat(hanging) };
            lines.iter().enumerate().map(|(at, line)| begin(at) + &painted(line, screen)).collect()
        }
        // A command that is broken cannot be copied.
        MarkdownBlock::Code(text) => {
            text.trim_end().lines().map(|line| format!("    {}", shown::line(line)).trim_end().to_owned()).collect()
        }
        MarkdownBlock::Table { head, rows } => table(&head, &rows, screen),
    }
}

/// Parses the page into blocks.
fn blocks(markdown: &str) -> Vec<MarkdownBlock> {
    let mut reader = BlockReader::default();
    for event in Parser::new_ext(markdown, Options::ENABLE_TABLES) {
        reader.event(event);
    }
    reader.end_text();
    reader.blocks
}

#[derive(Debug, Default)]
struct BlockReader {
    blocks: Vec<MarkdownBlock>,
    inline: Inline,
    is_bold: bool,
    code: Option<String>,
    /// The next number of each list around, 0 for lists without numbers.
    lists: Vec<u64>,
    mark: Option<String>,
    head: Vec<Inline>,
    rows: Vec<Vec<Inline>>,
    row: Vec<Inline>,
}

impl BlockReader {
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::Start(tag) => self.start(&tag),
            Event::End(tag) => self.end(tag),
            Event::Text(text) => match &mut self.code {
                Some(code) => code.push_str(&text),
                None => self.push(&text, if self.is_bold { TextStyle::Bold } else { TextStyle::Plain }),
            },
            Event::Code(text) => self.push(&text, TextStyle::Code),
            Event::SoftBreak | Event::HardBreak => self.push(" ", TextStyle::Plain),
            _ => {}
        }
    }

    fn push(&mut self, text: &str, style: TextStyle) {
        self.inline.extend(shown::line(text).chars().map(|one| (one, style)));
    }

    fn start(&mut self, tag: &Tag<'_>) {
        match tag {
            Tag::Strong => self.is_bold = true,
            Tag::CodeBlock(_) => self.code = Some(String::new()),
            Tag::List(first) => {
                self.end_text();
                self.lists.push(first.unwrap_or(0));
            }
            Tag::Item => {
                self.end_text();
                self.mark = Some(match self.lists.last_mut() {
                    Some(number) if *number > 0 => {
                        *number += 1;
                        format!("{}. ", *number - 1)
                    }
                    _ => "- ".to_owned(),
                });
            }
            _ => {}
        }
    }

    fn end(&mut self, tag: TagEnd) {
        match tag {
            TagEnd::Strong => self.is_bold = false,
            TagEnd::Heading(_) => {
                let text = std::mem::take(&mut self.inline);
                self.blocks.push(MarkdownBlock::Heading(text));
            }
            TagEnd::Paragraph | TagEnd::Item => self.end_text(),
            TagEnd::List(_) => {
                self.lists.pop();
            }
            TagEnd::CodeBlock => {
                let code = self.code.take().unwrap_or_default();
                self.blocks.push(MarkdownBlock::Code(code));
            }
            TagEnd::TableCell => self.row.push(std::mem::take(&mut self.inline)),
            TagEnd::TableHead => self.head = std::mem::take(&mut self.row),
            TagEnd::TableRow => self.rows.push(std::mem::take(&mut self.row)),
            TagEnd::Table => {
                let head = std::mem::take(&mut self.head);
                let rows = std::mem::take(&mut self.rows);
                self.blocks.push(MarkdownBlock::Table { head, rows });
            }
            _ => {}
        }
    }

    /// Ends the paragraph or item that was read, if there is text in it.
    fn end_text(&mut self) {
        if self.inline.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.inline);
        self.blocks.push(MarkdownBlock::Text { text, depth: self.lists.len(), mark: self.mark.take() });
    }
}

/// Breaks text at spaces into lines of at most `width` characters; a longer word has a line of its own.
fn wrapped(text: &[(char, TextStyle)], width: usize) -> Vec<Inline> {
    let mut lines: Vec<Inline> = vec![Inline::new()];
    for word in text.split(|(one, _)| *one == ' ').filter(|word| !word.is_empty()) {
        let last = lines.len() - 1;
        let used = marked_len(&lines[last]);
        if used > 0 && used + 1 + marked_len(word) > width {
            lines.push(word.to_vec());
            continue;
        }
        if used > 0 {
            // A space within code belongs to the code.
            let both = lines[last].last().map(|(_, style)| *style) == word.first().map(|(_, style)| *style);
            let style = if both { word[0].1 } else { TextStyle::Plain };
            lines[last].push((' ', style));
        }
        lines[last].extend_from_slice(word);
    }
    lines
}

/// Length of a text with the backticks that its code may get.
fn marked_len(text: &[(char, TextStyle)]) -> usize {
    let parts = text.chunk_by(|one, next| one.1 == next.1);
    text.len() + GAP * parts.filter(|part| part[0].1 == TextStyle::Code).count()
}

fn painted(line: &[(char, TextStyle)], screen: TextScreen) -> String {
    let mut text = String::new();
    for part in line.chunk_by(|one, next| one.1 == next.1) {
        let inner: String = part.iter().map(|(one, _)| *one).collect();
        match (part[0].1, screen.has_colours) {
            (TextStyle::Bold, true) => text.push_str(&format!("{BOLD}{inner}{RESET}")),
            (TextStyle::Code, true) => text.push_str(&format!("{CYAN}{inner}{RESET}")),
            (TextStyle::Code, false) => text.push_str(&format!("`{inner}`")),
            _ => text.push_str(&inner),
        }
    }
    text
}

/// Characters that `painted` shows of a line.
fn shown_len(line: &[(char, TextStyle)], screen: TextScreen) -> usize {
    let codes = line.chunk_by(|one, next| one.1 == next.1).filter(|part| part[0].1 == TextStyle::Code).count();
    line.len() + if screen.has_colours { 0 } else { 2 * codes }
}

fn table(head: &[Inline], rows: &[Vec<Inline>], screen: TextScreen) -> Vec<String> {
    let columns = head.len();
    let natural = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).chain(head.get(column));
        cells.map(|cell| shown_len(cell, screen)).max().unwrap_or(0)
    };
    let mut widths: Vec<usize> = (0..columns).map(natural).collect();
    let before: usize = widths.iter().take(columns.saturating_sub(1)).map(|width| width + GAP).sum();
    let last = screen.width.saturating_sub(before);
    if columns == 0 {
        return Vec::new();
    }
    if last < LAST_COLUMN_MIN.min(widths[columns - 1]) {
        return listed(head, rows, screen);
    }
    widths[columns - 1] = widths[columns - 1].min(last);
    let bold: Vec<Inline> =
        head.iter().map(|cell| cell.iter().map(|(one, _)| (*one, TextStyle::Bold)).collect()).collect();
    let has_head = head.iter().any(|cell| !cell.is_empty());
    let heads = has_head.then(|| table_row(&bold, &widths, screen)).into_iter().flatten();
    heads.chain(rows.iter().flat_map(|row| table_row(row, &widths, screen))).collect()
}

/// The lines of a row, of which the last cell is wrapped.
fn table_row(row: &[Inline], widths: &[usize], screen: TextScreen) -> Vec<String> {
    let cells: Vec<Vec<Inline>> = row.iter().zip(widths).map(|(cell, width)| wrapped(cell, (*width).max(1))).collect();
    let height = cells.iter().map(Vec::len).max().unwrap_or(0);
    let line = |at: usize| {
        let mut line = String::new();
        for (cell, width) in cells.iter().zip(widths) {
            let part = cell.get(at).map_or(&[][..], |part| part);
            line.push_str(&painted(part, screen));
            line.push_str(&" ".repeat(width.saturating_sub(shown_len(part, screen)) + GAP));
        }
        line.trim_end().to_owned()
    };
    (0..height).map(line).collect()
}

/// A table as a list: the first cell of each row, and below it the other cells.
fn listed(head: &[Inline], rows: &[Vec<Inline>], screen: TextScreen) -> Vec<String> {
    let mut lines = Vec::new();
    let inner = screen.width.saturating_sub(2 * GAP).max(WIDTH_MIN / 2);
    for row in rows {
        let mut cells = row.iter().zip(head);
        if let Some((name, _)) = cells.next() {
            lines.extend(wrapped(name, screen.width).iter().map(|line| painted(line, screen)));
        }
        for (cell, head) in cells.filter(|(cell, _)| !cell.is_empty()) {
            let mut text: Inline = head.iter().map(|(one, _)| (*one, TextStyle::Plain)).collect();
            if !text.is_empty() {
                text.extend(": ".chars().map(|one| (one, TextStyle::Plain)));
            }
            text.extend(cell);
            lines.extend(wrapped(&text, inner).iter().map(|line| format!("    {}", painted(line, screen))));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "## Runs of `enn`\n\nA **bold** word, a [link](x.md) and `code with spaces` that goes on and on until the\nline ends.\n\n\
        - one item\n- another item, which is so long that it needs a second line\n\nThen:\n\n    enn ls   # a command\n\n\
        | key | default | |\n|---|---|---|\n| `a.b` | 1 | what it does, told at length |\n| `c` | | nothing |\n";

    #[test]
    fn a_page_is_text_without_markup() {
        let plain = text(PAGE, TextScreen { width: 50, has_colours: false });
        let expected = "Runs of enn\n\n\
            A bold word, a link and `code with spaces` that\ngoes on and on until the line ends.\n\n\
            - one item\n- another item, which is so long that it needs a\n  second line\n\nThen:\n\n    enn ls   # a command\n\n\
            key    default\n`a.b`  1        what it does, told at length\n`c`             nothing";
        assert_eq!(plain, expected);
    }

    #[test]
    fn a_narrow_table_is_a_list_and_colours_replace_backticks() {
        let narrow = text(PAGE, TextScreen { width: 32, has_colours: true });
        assert!(
            narrow.contains("\u{1b}[36ma.b\u{1b}[0m\n    default: 1\n    what it does, told at length\n"),
            "{narrow}"
        );
        assert!(narrow.contains("\u{1b}[1mbold\u{1b}[0m") && !narrow.contains('`'), "{narrow}");
    }
}
