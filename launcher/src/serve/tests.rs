//! Servers over real sockets, with engines that do as they are told.
