//! What needs name spaces of its own: networks whose cables can be pulled (root and iproute2), and small disks that are full (`unshare` and
//! `mount`). Where they cannot be had a test says so and passes. Most of it trains, and needs what the tier `libtorch` needs.

mod disk;
mod launches;
mod nodes;
