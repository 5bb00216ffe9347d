//! Colors, where they are wanted: on a terminal, unless the environment says no.

use std::io::Stdout;

use anstream::{AutoStream, ColorChoice};
use anstyle::{AnsiColor, Style};

/// What has gone well.
pub(super) const GOOD: Style = AnsiColor::Green.on_default();
/// What was refused in order.
pub(super) const REFUSED: Style = AnsiColor::Yellow.on_default();
/// What somebody must look at.
pub(super) const BAD: Style = AnsiColor::Red.on_default().bold();
/// What is seldom looked for.
pub(super) const QUIET: Style = Style::new().dimmed();

/// Whether styles are written or left out.
#[derive(Clone, Copy, Debug)]
pub struct Ink {
    colored: bool,
}

impl Ink {
    /// No styles.
    pub const PLAIN: Ink = Ink { colored: false };
    /// All styles.
    pub const COLORED: Ink = Ink { colored: true };

    /// Styles for a terminal that takes them. `NO_COLOR` and its relatives count as everywhere, see [`AutoStream::choice`].
    pub fn choose(out: &Stdout) -> Ink {
        Ink { colored: AutoStream::choice(out) != ColorChoice::Never }
    }

    /// This style, or none.
    pub(super) fn of(self, style: Style) -> Style {
        if self.colored { style } else { Style::new() }
    }
}
