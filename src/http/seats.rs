//! The connections of a listener, and the one that is closed for the next.
//!
//! At the limit, the idle connection with the longest time since its last whole request is closed.
//! First come those that never sent one. So a client that only opens sockets takes no place from
//! others.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Bits of an IPv6 address that belong to one client.
const V6_CLIENT_BITS: u32 = 64;

/// The places of one listener.
pub(crate) struct Seats {
    table: Mutex<Table>,
    most: usize,
    most_per_address: usize,
}

#[derive(Default)]
struct Table {
    seats: HashMap<u64, Seat>,
    per_address: HashMap<IpAddr, usize>,
    /// The number of the last event. A seat with a lower number has an older last event.
    next: u64,
}

struct Seat {
    address: IpAddr,
    /// Whether it has ever sent a whole request.
    asked: bool,
    /// The number of its last event.
    last: u64,
    /// Whether a request is being answered.
    busy: bool,
    leave: Arc<Notify>,
}

/// One connection's place. Dropping it frees the place.
pub(crate) struct Place {
    seats: Arc<Seats>,
    number: u64,
    leave: Arc<Notify>,
}

impl Seats {
    /// Places for `most` connections, `most_per_address` of them from one address.
    pub(crate) fn new(most: usize, most_per_address: usize) -> Arc<Seats> {
        Arc::new(Seats { table: Mutex::default(), most, most_per_address })
    }

    /// A place for a connection from this address; `None` if every other connection is being
    /// answered.
    pub(crate) fn take(self: &Arc<Self>, address: IpAddr) -> Option<Place> {
        let address = client(address);
        let mut table = self.table.lock();
        let of_address = table.per_address.get(&address).copied().unwrap_or(0);
        if of_address >= self.most_per_address {
            table.close_idlest(Some(address))?;
        } else if table.seats.len() >= self.most {
            table.close_idlest(None)?;
        }
        let (number, leave) = (table.event(), Arc::new(Notify::new()));
        let seat =
            Seat { address, asked: false, last: number, busy: false, leave: Arc::clone(&leave) };
        let earlier = table.seats.insert(number, seat);
        assert!(earlier.is_none(), "numbers are not repeated");
        debug_assert!(table.seats.len() <= self.most, "an idle connection left first");
        *table.per_address.entry(address).or_default() += 1;
        Some(Place { seats: Arc::clone(self), number, leave })
    }
}

impl Table {
    fn event(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Closes the idle connection with the longest time since its last whole request, of this
    /// address or of any; `None` if each is being answered.
    fn close_idlest(&mut self, address: Option<IpAddr>) -> Option<()> {
        let of = |seat: &&Seat| address.is_none_or(|address| seat.address == address);
        let idle = |seat: &&Seat| !seat.busy && of(seat);
        let by_age = |number: &u64| (self.seats[number].asked, self.seats[number].last);
        let numbers = self.seats.iter().filter(|(_, seat)| idle(seat)).map(|(number, _)| *number);
        let number = numbers.min_by_key(by_age)?;
        if let Some(seat) = self.remove(number) {
            seat.leave.notify_one();
        }
        Some(())
    }

    fn remove(&mut self, number: u64) -> Option<Seat> {
        let seat = self.seats.remove(&number)?;
        if let Some(count) = self.per_address.get_mut(&seat.address) {
            assert!(*count > 0, "a seat is removed once");
            *count -= 1;
            if *count == 0 {
                self.per_address.remove(&seat.address);
            }
        }
        Some(seat)
    }
}

impl Place {
    /// Marks the connection as busy; `false`: the place was given away, and the connection is about
    /// to close.
    pub(crate) fn begin(&self) -> bool {
        let mut table = self.seats.table.lock();
        let last = table.event();
        table.seats.get_mut(&self.number).is_some_and(|seat| {
            (seat.busy, seat.asked, seat.last) = (true, true, last);
            true
        })
    }

    /// Marks the connection as idle: its request is answered.
    pub(crate) fn end(&self) {
        let mut table = self.seats.table.lock();
        let last = table.event();
        if let Some(seat) = table.seats.get_mut(&self.number) {
            (seat.busy, seat.last) = (false, last);
        }
    }

    /// Returns when the place is given away.
    pub(crate) async fn given_away(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.seats.table.lock().remove(self.number);
    }
}

/// What counts as one client: an IPv4 address, or the network of an IPv6 address.
fn client(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => {
            let network = v6.to_bits() >> V6_CLIENT_BITS << V6_CLIENT_BITS;
            Ipv6Addr::from_bits(network).into()
        }
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn here(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    fn holds(place: &Place) -> bool {
        place.seats.table.lock().seats.contains_key(&place.number)
    }

    #[test]
    fn the_longest_without_a_request_leaves_first() {
        let seats = Seats::new(3, 3);
        let [asked, silent, busy] = [1, 2, 3].map(|last| seats.take(here(last)).expect("room"));
        assert!(asked.begin() && busy.begin());
        asked.end();
        let fourth = seats.take(here(4)).expect("the silent one leaves");
        assert!(holds(&asked) && !holds(&silent) && holds(&busy) && holds(&fourth));
        assert!(!silent.begin(), "it is about to be closed");
        assert!(fourth.begin());
        let fifth = seats.take(here(5)).expect("the idle one leaves");
        assert!(!holds(&asked) && fifth.begin());
        assert!(seats.take(here(6)).is_none(), "each is being answered");
        busy.end();
        assert!(seats.take(here(6)).is_some());
    }

    #[test]
    fn an_address_takes_no_more_than_its_share() {
        let seats = Seats::new(4, 2);
        let others = [seats.take(here(1)).expect("room"), seats.take(here(1)).expect("room")];
        let third = seats.take(here(1)).expect("its own oldest leaves");
        assert!(!holds(&others[0]) && holds(&others[1]) && holds(&third));
        let elsewhere = seats.take(here(2)).expect("room");
        assert!(holds(&others[1]) && holds(&third) && holds(&elsewhere));
        drop((others, third, elsewhere));
        let table = seats.table.lock();
        assert!(table.seats.is_empty() && table.per_address.is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_client() {
        let address = |text: &str| client(text.parse().expect("an address"));
        assert_eq!(address("2001:db8::1"), address("2001:db8::ffff:1"));
        assert_ne!(address("2001:db8::1"), address("2001:db8:0:1::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }
}
