//! Line diff of two texts.

use crate::text::{BAD, DIM, GOOD, paint};

/// Lines of context around a change.
const AROUND: usize = 2;

pub(crate) fn diff(before: &str, after: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let lines = align(&old, &new);
    let near = |at: usize| {
        let from = at.saturating_sub(AROUND);
        lines[from..(at + AROUND + 1).min(lines.len())].iter().any(|(mark, _)| *mark != ' ')
    };
    let mut text = String::new();
    let mut skipped = false;
    for (at, (mark, line)) in lines.iter().enumerate() {
        if !near(at) {
            skipped = true;
            continue;
        }
        if skipped && !text.is_empty() {
            text.push_str(&paint(DIM, "    …"));
            text.push('\n');
        }
        skipped = false;
        let shown = format!("  {mark} {line}");
        let shown = match mark {
            '+' => paint(GOOD, &shown),
            '-' => paint(BAD, &shown),
            _ => shown,
        };
        text.push_str(&shown);
        text.push('\n');
    }
    text
}

/// Marks each line with `-`, `+` or a blank, by the longest common subsequence.
fn align<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(char, &'a str)> {
    let mut common = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for i in (0..old.len()).rev() {
        for j in (0..new.len()).rev() {
            common[i][j] = if old[i] == new[j] {
                common[i + 1][j + 1] + 1
            } else {
                common[i + 1][j].max(common[i][j + 1])
            };
        }
    }
    let (mut i, mut j, mut lines) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            lines.push((' ', old[i]));
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || i < old.len() && common[i + 1][j] >= common[i][j + 1] {
            lines.push(('-', old[i]));
            i += 1;
        } else {
            lines.push(('+', new[j]));
            j += 1;
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changes_and_their_context_are_shown() {
        let before = "a\nb\nc\nd\ne\nf\n";
        let after = "a\nb\nc\nx\ne\nf\n";
        let shown = anstream::adapter::strip_str(&diff(before, after)).to_string();
        assert_eq!(shown, "    b\n    c\n  - d\n  + x\n    e\n    f\n");
    }
}
