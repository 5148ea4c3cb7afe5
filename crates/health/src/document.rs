//! The pages under `docs/findings`.
