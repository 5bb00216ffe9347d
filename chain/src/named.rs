//! Enums that PostgreSQL stores by number and the wire shows by name.

/// Gives an enum of `repr(i16)` its list, its number and its name. A variant that is not listed
/// does not compile.
macro_rules! named {
    ($of:ident { $($variant:ident => $name:literal),+ $(,)? }) => {
        impl $of {
            /// Every variant.
            pub const ALL: [$of; [$($name),+].len()] = [$($of::$variant),+];

            /// The number that PostgreSQL stores. A number is never used again.
            pub fn number(self) -> i16 {
                self as i16
            }

            /// The variant with this number.
            pub fn from_number(number: i16) -> Option<$of> {
                $of::ALL.into_iter().find(|it| it.number() == number)
            }

            /// The name on the wire.
            pub fn name(self) -> &'static str {
                match self {
                    $($of::$variant => $name,)+
                }
            }
        }
    };
}

pub(crate) use named;
