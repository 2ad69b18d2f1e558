//! Stateful autocast: a scope of the model with numerical trouble runs in f32 for a while, then in low precision again.
//!
//! **Invariant:** cool-downs depend only on step numbers and on scopes that all ranks report at the same step, so that all ranks
//! cast alike.

/// Steps in f32 after trouble.
pub const COOLDOWN_STEPS: u64 = 64;

/// Scopes that run in f32, each until a step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cooldown {
    /// Dotted path and the first step that casts again, by path.
    places: Vec<(String, u64)>,
}

impl Cooldown {
    /// Notes that `place` (a dotted path, with everything below it) had trouble at `step`. Every rank must note it for the same step.
    pub fn trouble(&mut self, place: &str, step: u64) {
        let until = step.saturating_add(COOLDOWN_STEPS).saturating_add(1);
        match self.places.binary_search_by(|(known, _)| known.as_str().cmp(place)) {
            Ok(at) => self.places[at].1 = self.places[at].1.max(until),
            Err(at) => self.places.insert(at, (place.to_owned(), until)),
        }
    }

    /// Returns the scopes with the first step that casts again, in order. Checkpoints hold them.
    pub fn places(&self) -> &[(String, u64)] {
        &self.places
    }

    /// Restores cool-downs from the result of [`Cooldown::places`].
    pub fn of(places: impl IntoIterator<Item = (String, u64)>) -> Self {
        let mut places: Vec<_> = places.into_iter().collect();
        places.sort_unstable();
        Self { places }
    }

    /// Returns the scopes that run in f32 at `step`, in order, and forgets those that have cooled down.
    pub fn at(&mut self, step: u64) -> Vec<String> {
        self.places.retain(|(_, until)| step < *until);
        self.places.iter().map(|(place, _)| place.clone()).collect()
    }
}

/// Whether `path` is `place` or below it. The empty place is the whole model.
pub(super) fn covers(place: &str, path: &str) -> bool {
    place.is_empty() || path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_cools_for_64_steps_and_tries_again() {
        let mut cooldown = Cooldown::default();
        cooldown.trouble("fuser.block_1", 10);
        assert_eq!(cooldown.at(11), ["fuser.block_1"]);
        assert_eq!(cooldown.at(10 + COOLDOWN_STEPS), ["fuser.block_1"]);
        assert!(cooldown.at(11 + COOLDOWN_STEPS).is_empty());
        assert_eq!(cooldown, Cooldown::default(), "nothing is kept of it");
    }

    #[test]
    fn trouble_again_starts_the_time_anew_and_never_shortens_it() {
        let mut cooldown = Cooldown::default();
        cooldown.trouble("b", 10);
        cooldown.trouble("a", 20);
        cooldown.trouble("b", 30);
        cooldown.trouble("b", 5);
        assert_eq!(cooldown.at(31), ["a", "b"], "the same order on every rank");
        assert_eq!(cooldown.at(90), ["b"]);
    }

    #[test]
    fn what_was_kept_cools_on() {
        let mut cooldown = Cooldown::default();
        ["b", "a", "c"].into_iter().zip(10..).for_each(|(place, step)| cooldown.trouble(place, step));
        let mut back = Cooldown::of(cooldown.places().iter().rev().cloned());
        assert_eq!(back, cooldown);
        assert_eq!(back.at(11 + COOLDOWN_STEPS), ["a", "c"]);
    }

    #[test]
    fn a_place_covers_what_is_below_it() {
        assert!(covers("fuser", "fuser") && covers("fuser", "fuser.block_1") && covers("", "anything"));
        assert!(!covers("fuser.block_1", "fuser.block_10") && !covers("fuser.block_1", "fuser"));
    }
}
