//! The pages (.md) that help shows parts of: they are in the program, and are read where they are in the repository.

/// A page that is a part of the program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmbeddedPage {
    /// Path in the repository.
    pub(crate) path: &'static str,
    pub(crate) text: &'static str,
}

pub(crate) const TRAINING: EmbeddedPage =
    EmbeddedPage { path: "launcher/TRAINING.md", text: include_str!("../../TRAINING.md") };
pub(crate) const DATA: EmbeddedPage = EmbeddedPage { path: "launcher/DATA.md", text: include_str!("../../DATA.md") };
pub(crate) const FAULTS: EmbeddedPage =
    EmbeddedPage { path: "launcher/FAULTS.md", text: include_str!("../../FAULTS.md") };
pub(crate) const JUDGING: EmbeddedPage =
    EmbeddedPage { path: "launcher/JUDGING.md", text: include_str!("../../JUDGING.md") };
pub(crate) const LAUNCH: EmbeddedPage =
    EmbeddedPage { path: "launcher/LAUNCH.md", text: include_str!("../../LAUNCH.md") };
pub(crate) const PREDICTING: EmbeddedPage =
    EmbeddedPage { path: "launcher/PREDICTING.md", text: include_str!("../../PREDICTING.md") };
pub(crate) const CHECKPOINTS: EmbeddedPage =
    EmbeddedPage { path: "launcher/CHECKPOINTS.md", text: include_str!("../../CHECKPOINTS.md") };
pub(crate) const EXPORT: EmbeddedPage =
    EmbeddedPage { path: "launcher/export/EXPORT.md", text: include_str!("../../export/EXPORT.md") };
pub(crate) const RUN: EmbeddedPage = EmbeddedPage { path: "docs/run.md", text: include_str!("../../../docs/run.md") };

/// A row of a table, or a paragraph, that describes a key of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Description {
    /// The default as the page tells it; empty where it does not.
    pub(crate) default: String,
    /// The description in Markdown.
    pub(crate) text: String,
    pub(crate) page: &'static str,
}

impl EmbeddedPage {
    /// Returns a section, from its heading to the next one that is not below it; `None` where the page has no such heading.
    pub(crate) fn section(self, heading: &str) -> Option<&'static str> {
        let begin = self.headings().find(|(_, _, title)| *title == heading)?;
        let end = self.headings().find(|(at, depth, _)| *at > begin.0 && *depth <= begin.1);
        Some(&self.text[begin.0..end.map_or(self.text.len(), |(at, _, _)| at)])
    }

    /// Place, depth and title of each heading.
    fn headings(self) -> impl Iterator<Item = (usize, usize, &'static str)> {
        let mut place = 0;
        let mut is_code = false;
        self.text.split_inclusive('\n').filter_map(move |line| {
            let at = place;
            place += line.len();
            is_code ^= line.starts_with("```");
            let depth = line.bytes().take_while(|byte| *byte == b'#').count();
            let title = line[depth..].strip_prefix(' ').filter(|_| depth > 0 && !is_code)?;
            Some((at, depth, title.trim()))
        })
    }

    /// Finds the row of a table whose first or second cell is the key, with its section or below a heading or a head that names it.
    pub(crate) fn row_of(self, key: &str) -> Option<Description> {
        let (section, last) = key.rsplit_once('.').unwrap_or(("", key));
        // A table of keys describes them; others use them to describe something else.
        let is_of_keys = |place: &str| {
            place.trim_end().rsplit('\n').next().is_some_and(|head| head.split(' ').any(|word| word == "key"))
        };
        // A section whose keys users choose has a row of its own.
        let names_it = |cell: &str| spans(cell).any(|span| span == key || span == format!("[{key}]"));
        let of_keys = self.row(|cell, place| is_of_keys(place) && names_it(cell));
        let whole = of_keys.or_else(|| self.row(|cell, _| names_it(cell)));
        let of_section = format!("`[{section}]`");
        whole.or_else(|| self.row(|cell, place| place.contains(&of_section) && spans(cell).any(|span| span == last)))
    }

    /// Finds a paragraph that names the key, or the row of a table in another section's words.
    pub(crate) fn description(self, key: &str) -> Option<Description> {
        let last = key.rsplit('.').next().unwrap_or(key);
        let paragraph = |begin: &str| {
            let found = self.text.split("\n\n").find(|part| part.contains(begin) && !part.starts_with('#'))?;
            let is_head = found.lines().next().is_some_and(|line| line.starts_with('|') && line.contains(begin));
            // Of a table whose rows are keys only the rows of this one are shown.
            let rows = found.lines().filter(|line| is_head || !line.starts_with('|') || line.contains(begin));
            let text = rows.collect::<Vec<_>>().join("\n");
            let text = if is_head { text } else { text.replace('|', " ") };
            Some(Description { default: String::new(), text: text.trim().to_owned(), page: self.path })
        };
        // `train.loss = "huber"` names a key, too, and so does `kernels.attention` one of a section with free keys.
        let begins = [format!("`{key}`"), format!("`{key} = "), format!("`{key}.")];
        let named = begins.iter().find_map(|begin| paragraph(begin));
        named
            .or_else(|| self.row(|cell, _| spans(cell).any(|span| span == last)))
            .or_else(|| paragraph(&format!("`{last}`")))
            .or_else(|| self.example(last))
    }

    /// Finds a block of TOML that sets a key of this name.
    fn example(self, last: &str) -> Option<Description> {
        let set = format!("{last} = ");
        let blocks = self.text.split("```toml\n").skip(1).filter_map(|rest| rest.split("```").next());
        let block = blocks.into_iter().find(|block| block.lines().any(|line| line.contains(&set)))?;
        Some(Description { default: String::new(), text: format!("```toml\n{block}```\n"), page: self.path })
    }

    /// Finds the row of a table of which one of the first two cells fits. `fits` also gets the text between the table's heading and the
    /// row's table, with the head of the table.
    fn row(self, fits: impl Fn(&str, &str) -> bool) -> Option<Description> {
        let mut head: Vec<&str> = Vec::new();
        let mut context = String::new();
        let mut is_table = false;
        for line in self.text.lines() {
            if line.starts_with('#') {
                context.clear();
            }
            if !line.starts_with('|') {
                is_table = false;
                context.push_str(line);
                continue;
            }
            let cells = cells(line);
            if !is_table {
                is_table = true;
                head = cells;
                continue;
            }
            let head_text = head.join(" ");
            let place = format!("{context}\n{head_text}");
            if cells.iter().take(2).any(|cell| fits(cell, &place)) {
                let at = head.iter().position(|name| *name == "default");
                let default = at.and_then(|at| cells.get(at)).map_or("", |cell| cell);
                let text = cells.last().copied().unwrap_or_default();
                return Some(Description { default: default.to_owned(), text: text.to_owned(), page: self.path });
            }
        }
        None
    }
}

/// Returns the cells of a row of a table.
fn cells(line: &str) -> Vec<&str> {
    let inner = line.trim().trim_start_matches('|');
    inner.strip_suffix('|').unwrap_or(inner).split('|').map(str::trim).collect()
}

/// Returns the spans of code in a text.
fn spans(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}
