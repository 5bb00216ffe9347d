//! Actions that one operator requests and another one approves, and the states of such a request.

/// The actions that may need two operators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The end of the wait for a transfer's decision.
    Resolve,
    /// `ubscore repair --apply`. No service runs then, so both operators give their tokens.
    Repair,
    /// The end of a halt.
    Resume,
    /// Money from or to the outside.
    External,
    /// The release of a closed venue's hold, and a freeze or an unfreeze.
    Hold,
    /// The abort of a transaction, its resolution, or the end of one of its branches.
    Transaction,
}

impl Action {
    /// All of them.
    pub const ALL: [Action; 6] = [
        Action::Resolve,
        Action::Repair,
        Action::Resume,
        Action::External,
        Action::Hold,
        Action::Transaction,
    ];

    /// The action with this name.
    pub fn from_name(name: &str) -> Option<Action> {
        Action::ALL.into_iter().find(|action| action.name() == name)
    }

    /// Its name, in the configuration as on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Action::Resolve => "resolve",
            Action::Repair => "repair",
            Action::Resume => "resume",
            Action::External => "external",
            Action::Hold => "hold",
            Action::Transaction => "transaction",
        }
    }
}

/// The state of a request. PostgreSQL stores the number, and keeps an expired request as pending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i16)]
pub enum State {
    /// It waits for another operator.
    Pending = 1,
    /// It may be carried out, and repeated, until it expires.
    Approved = 2,
    /// It will never be carried out.
    Rejected = 3,
    /// It was not approved in time.
    Expired = 4,
}

impl State {
    /// All of them.
    pub const ALL: [State; 4] = [State::Pending, State::Approved, State::Rejected, State::Expired];

    /// The state with this number.
    pub fn from_number(number: i16) -> Option<State> {
        State::ALL.into_iter().find(|state| *state as i16 == number)
    }

    /// The state with this name on the wire.
    pub fn from_name(name: &str) -> Option<State> {
        State::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            State::Pending => "PENDING_APPROVAL",
            State::Approved => "APPROVED",
            State::Rejected => "REJECTED",
            State::Expired => "EXPIRED",
        }
    }
}
