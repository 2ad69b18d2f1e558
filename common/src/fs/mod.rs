//! Files that are whole or absent: atomic write, mapping, the storage seam for crash tests.
