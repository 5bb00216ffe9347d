//! Colors of the output: on a terminal, unless the environment turns them off.

use std::io::Stdout;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// The style of a success.
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
/// The style of a proper refusal.
pub(super) const REFUSED: Style = AnsiColor::Yellow.on_default();
/// The style of a finding that an operator must check.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
/// The style of secondary details.
pub(super) const QUIET: Style = Style::new().dimmed();

/// Whether styles are written.
#[derive(Clone, Copy, Debug)]
pub struct Ink {
    colored: bool,
}

impl Ink {
    /// No styles.
    pub const PLAIN: Ink = Ink { colored: false };
    /// All styles.
    pub const COLORED: Ink = Ink { colored: true };

    /// Styles for a terminal that supports them. `NO_COLOR` and similar variables count, see
    /// [`AutoStream::choice`].
    pub fn choose(out: &Stdout) -> Ink {
        Ink { colored: AutoStream::choice(out) != ColorChoice::Never }
    }

    /// This style, or none.
    pub(super) fn of(self, style: Style) -> Style {
        if self.colored { style } else { Style::new() }
    }
}
