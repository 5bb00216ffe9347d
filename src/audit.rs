//! What watches over the money from outside its path, and stops the service before it is wrong.
//!
//! Rooms: [`halt`] (the flag that stops the service until an operator resumes), [`frequency`] (users who transfer more
//! often than anybody should).

pub mod frequency;
pub mod halt;
