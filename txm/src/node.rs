//! One process of the transaction manager: its leases, its owners, and its looks at the chain.
