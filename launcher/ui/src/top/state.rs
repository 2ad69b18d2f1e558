//! What the person at the keyboard has chosen. Pure.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

const PAGE: usize = 10;
const SEARCH_MAX: usize = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum WorkerFilter {
    #[default]
    All,
    Failed,
    Here,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Pane {
    /// Standard error of the selected worker.
    #[default]
    Stderr,
    Stdout,
    /// The log of events.
    Reasons,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeyOutcome {
    Stay,
    Quit,
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct TopState {
    /// Rank of the selected worker; `None` until one was chosen: the one that failed, else the first.
    pub(super) selected: Option<u32>,
    pub(super) filter: WorkerFilter,
    pub(super) pane: Pane,
    /// Whether a key chose the pane; until then [`Self::suggest`] does.
    pub(super) chosen: bool,
    /// Only lines with this text are shown in the lower part; empty: all.
    pub(super) search: String,
    pub(super) typing: bool,
    /// Lines between the end of the lower part and its last visible line.
    pub(super) scroll: usize,
    /// Whether the keys are explained.
    pub(super) help: bool,
}

impl TopState {
    /// Shows `pane`, unless a key chose another one.
    pub(super) fn suggest(&mut self, pane: Pane) {
        if !self.chosen && self.pane != pane {
            self.pane = pane;
            self.scroll = 0;
        }
    }

    /// Takes a key; `ranks` are those listed, `shown` the one that is selected now.
    pub(super) fn press(&mut self, key: KeyEvent, ranks: &[u32], shown: Option<u32>) -> KeyOutcome {
        if key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL) {
            return KeyOutcome::Quit;
        }
        if self.typing {
            self.type_search(key.code);
            return KeyOutcome::Stay;
        }
        if self.help {
            self.help = false;
            return KeyOutcome::Stay;
        }
        match key.code {
            KeyCode::Char('q') => return KeyOutcome::Quit,
            KeyCode::Esc if !self.search.is_empty() => self.search.clear(),
            KeyCode::Esc => return KeyOutcome::Quit,
            KeyCode::Up | KeyCode::Char('k') => self.select(ranks, shown, |index, _| index.saturating_sub(1)),
            KeyCode::Down | KeyCode::Char('j') => self.select(ranks, shown, |index, last| (index + 1).min(last)),
            KeyCode::Home | KeyCode::Char('g') => self.select(ranks, shown, |_, _| 0),
            KeyCode::End | KeyCode::Char('G') => self.select(ranks, shown, |_, last| last),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_add(PAGE),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_sub(PAGE),
            KeyCode::Char('f') => {
                self.filter = match self.filter {
                    WorkerFilter::All => WorkerFilter::Failed,
                    WorkerFilter::Failed => WorkerFilter::Here,
                    WorkerFilter::Here => WorkerFilter::All,
                }
            }
            KeyCode::Char('l') => self.turn(if self.pane == Pane::Stderr { Pane::Stdout } else { Pane::Stderr }),
            KeyCode::Char('r') => self.turn(Pane::Reasons),
            KeyCode::Char('/') => {
                self.typing = true;
                self.search.clear();
            }
            KeyCode::Char('?' | 'h') => self.help = true,
            _ => {}
        }
        KeyOutcome::Stay
    }

    fn turn(&mut self, pane: Pane) {
        self.pane = pane;
        self.chosen = true;
        self.scroll = 0;
    }

    fn select(&mut self, ranks: &[u32], shown: Option<u32>, to: impl Fn(usize, usize) -> usize) {
        let Some(last) = ranks.len().checked_sub(1) else { return };
        let index = shown.and_then(|shown| ranks.iter().position(|rank| *rank == shown)).unwrap_or(0);
        self.selected = ranks.get(to(index, last)).copied();
        self.scroll = 0;
    }

    fn type_search(&mut self, key: KeyCode) {
        match key {
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.search.clear();
            }
            KeyCode::Backspace => {
                self.search.pop();
            }
            KeyCode::Char(c) if self.search.chars().count() < SEARCH_MAX => self.search.push(c),
            _ => {}
        }
        self.scroll = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RANKS: [u32; 4] = [3, 5, 8, 9];

    fn key(code: KeyCode) -> KeyEvent {
        code.into()
    }

    fn interrupt() -> KeyEvent {
        KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL)
    }

    /// The state after some keys, with the selection as it is shown.
    fn after(keys: &[KeyEvent]) -> (TopState, KeyOutcome) {
        let mut state = TopState::default();
        let mut outcome = KeyOutcome::Stay;
        for key in keys {
            let shown = state.selected.or(Some(RANKS[0]));
            outcome = state.press(*key, &RANKS, shown);
        }
        (state, outcome)
    }

    fn typed(text: &str) -> Vec<KeyEvent> {
        text.chars().map(|c| key(KeyCode::Char(c))).collect()
    }

    #[test]
    fn what_has_something_to_show_is_shown_until_a_key_chooses() {
        let mut state = TopState::default();
        for pane in [Pane::Reasons, Pane::Stdout, Pane::Stderr] {
            state.suggest(pane);
            assert_eq!(state.pane, pane);
        }
        state.press(key(KeyCode::Char('l')), &RANKS, None);
        state.suggest(Pane::Reasons);
        assert_eq!(state.pane, Pane::Stdout, "the key chose it");
    }

    #[test]
    fn selection_stays_within_the_list() {
        assert_eq!(after(&typed("jj")).0.selected, Some(8));
        assert_eq!(after(&[key(KeyCode::Down); 9]).0.selected, Some(9));
        assert_eq!(after(&typed("Gk")).0.selected, Some(8));
        assert_eq!(after(&[key(KeyCode::End), key(KeyCode::Home), key(KeyCode::Up)]).0.selected, Some(3));
        let mut gone = TopState { selected: Some(77), ..TopState::default() };
        gone.press(key(KeyCode::Down), &RANKS, Some(77));
        assert_eq!(gone.selected, Some(5));
        gone.press(key(KeyCode::Down), &[], None);
        assert_eq!(gone.selected, Some(5));
    }

    #[test]
    fn filters_and_panes_go_round() {
        let filters: Vec<WorkerFilter> = (0..4).map(|n| after(&typed(&"f".repeat(n))).0.filter).collect();
        assert_eq!(filters, [WorkerFilter::All, WorkerFilter::Failed, WorkerFilter::Here, WorkerFilter::All]);
        let panes: Vec<Pane> = ["", "l", "ll", "r", "rl"].map(|keys| after(&typed(keys)).0.pane).to_vec();
        assert_eq!(panes, [Pane::Stderr, Pane::Stdout, Pane::Stderr, Pane::Reasons, Pane::Stderr]);
    }

    #[test]
    fn a_search_takes_letters_that_are_keys_elsewhere() {
        let (state, outcome) = after(&typed("/quit"));
        assert_eq!((state.search.as_str(), state.typing, outcome), ("quit", true, KeyOutcome::Stay));
        let keys = [typed("/quit"), vec![key(KeyCode::Backspace), key(KeyCode::Enter)]].concat();
        assert_eq!(after(&keys).0, TopState { search: "qui".into(), ..TopState::default() });
        assert_eq!(after(&[keys.clone(), vec![key(KeyCode::Esc)]].concat()).0, TopState::default());
        assert_eq!(after(&[keys, typed("q")].concat()).1, KeyOutcome::Quit);
    }

    #[test]
    fn help_closes_with_any_key_and_control_c_always_leaves() {
        assert!(after(&typed("?")).0.help);
        assert_eq!(after(&typed("?q")), (TopState::default(), KeyOutcome::Stay));
        for before in ["", "?", "/x"] {
            assert_eq!(after(&[typed(before), vec![interrupt()]].concat()).1, KeyOutcome::Quit);
        }
    }

    proptest! {
        /// Whatever is typed, the selection is a listed rank and the search is bounded.
        #[test]
        fn any_keys_are_survived(text in "[jkgGflr/?hx ]{0,200}") {
            let (state, _) = after(&typed(&text));
            prop_assert!(state.selected.is_none_or(|rank| RANKS.contains(&rank)));
            prop_assert!(state.search.chars().count() <= SEARCH_MAX);
        }
    }
}
