//! Reading addresses: every form, who wins, and that no secret gets out.
