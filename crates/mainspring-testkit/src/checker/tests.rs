//! Each rule holds of a good history and catches a bad one.
