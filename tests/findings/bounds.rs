//! Findings about bounds: places, clocks, limits of a day.
