//! The parser of `SLURM_CPU_BIND`, which names the cores of each task of a node.

/// Limit on the hexadecimal digits of a mask: 4,096 cores.
const MASK_DIGITS_MAX: usize = 1024;

/// Returns the cores by local id, from `quiet,mask_cpu:0x3,0xC` or `map_cpu:0,2`; empty for other kinds of binding.
pub(super) fn cpus(text: &str) -> Vec<Vec<usize>> {
    let lists = |kind: &str| text.find(kind).map(|at| text[at + kind.len()..].split(','));
    let all: Option<Vec<_>> = if let Some(masks) = lists("mask_cpu:") {
        masks.map(mask).collect()
    } else if let Some(maps) = lists("map_cpu:") {
        maps.map(number).map(|core| core.map(|core| vec![core])).collect()
    } else {
        None
    };
    all.unwrap_or_default()
}

/// Returns the cores of a hexadecimal mask; `None` for a mask of no core.
fn mask(text: &str) -> Option<Vec<usize>> {
    let digits = text.trim().strip_prefix("0x").unwrap_or(text.trim());
    if digits.len() > MASK_DIGITS_MAX {
        return None;
    }
    let mut cores = Vec::new();
    for (place, digit) in digits.chars().rev().enumerate() {
        let bits = digit.to_digit(16)?;
        cores.extend((0..4).filter(|bit| bits & (1 << bit) != 0).map(|bit| place * 4 + bit));
    }
    (!cores.is_empty()).then_some(cores)
}

fn number(text: &str) -> Option<usize> {
    let text = text.trim();
    match text.strip_prefix("0x") {
        Some(digits) => usize::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::cpus;

    #[test]
    fn masks_and_maps() {
        assert_eq!(cpus("quiet,mask_cpu:0x00000003,0x0000000C"), [vec![0, 1], vec![2, 3]]);
        assert_eq!(cpus("verbose,mask_cpu:0x100000000000000000"), [vec![68]]);
        assert_eq!(cpus("quiet,map_cpu:0,2,0x1f"), [vec![0], vec![2], vec![31]]);
    }

    #[test]
    fn other_bindings_are_none() {
        for text in [
            "quiet,none",
            "quiet,mask_ldom:0x1",
            "quiet,rank_ldom",
            "mask_cpu:",
            "mask_cpu:0x0",
            "mask_cpu:0xg",
            "map_cpu:-1",
        ] {
            assert_eq!(cpus(text), Vec::<Vec<usize>>::new(), "{text}");
        }
    }
}
