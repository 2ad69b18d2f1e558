//! The pages (.md) that the program shows parts of: they are in it, and are read where they are in the repository.

pub(crate) mod key_texts;

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
}
