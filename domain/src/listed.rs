//! Declares an enum of stored numbers together with the list of its variants.

/// Declares the enum and `ALL`, its variants in the order of the declaration. So a new variant is
/// in every list that is made of `ALL`. A variant with `if "feature"` exists with that feature of
/// this crate only.
macro_rules! listed {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$doc:meta])* $variant:ident = $number:literal $(if $feature:literal)?,)+
        }
    ) => {
        $(#[$meta])*
        pub enum $name {
            $($(#[$doc])* $(#[cfg(feature = $feature)])? $variant = $number,)+
        }

        impl $name {
            /// The number of variants.
            pub const COUNT: usize = [$($(#[cfg(feature = $feature)])? $name::$variant,)+].len();

            /// Every variant, in the order of the declaration.
            pub const ALL: [$name; $name::COUNT] =
                [$($(#[cfg(feature = $feature)])? $name::$variant,)+];
        }
    };
}
