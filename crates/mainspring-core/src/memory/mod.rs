//! The memory store: the reference model that every other store is compared with.
