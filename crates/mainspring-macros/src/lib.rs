//! The derive macro of Mainspring.
