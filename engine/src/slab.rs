//! The slab of commands by name: a slot of the ring names a cell, so it stays small, and only the
//! legs used are written and read.

use crossbeam::queue::ArrayQueue;
use parking_lot::Mutex;

use crate::named::Named;

/// The most commands by name on the ring.
const CELLS_MAX: usize = 256;

/// Cells for commands by name, all made at the start.
pub(crate) struct Slab {
    free: ArrayQueue<u32>,
    cells: Box<[Mutex<Named>]>,
}

impl Slab {
    /// As many cells as commands may wait for an answer, at most 256.
    pub(crate) fn new(in_flight_max: usize) -> Slab {
        let cells = in_flight_max.clamp(1, CELLS_MAX);
        let free = ArrayQueue::new(cells);
        for cell in 0..u32::try_from(cells).expect("few") {
            free.push(cell).expect("sized for all");
        }
        Slab { free, cells: (0..cells).map(|_| Mutex::new(Named::empty())).collect() }
    }

    /// Takes a free cell.
    pub(crate) fn take(&self) -> Option<u32> {
        self.free.pop()
    }

    /// The command in a cell. No other thread wants it: the cell is on the ring or just taken.
    pub(crate) fn cell(&self, cell: u32) -> &Mutex<Named> {
        &self.cells[usize::try_from(cell).expect("u32 fits")]
    }

    /// Gives a cell back.
    pub(crate) fn give_back(&self, cell: u32) {
        self.free.push(cell).expect("sized for all");
    }
}
