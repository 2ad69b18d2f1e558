//! Authentication of nodes: both sides prove that they know the run's token, and never send it.
//!
//! A proof is a blake3 hash, keyed by the token, of both nonces and of the prover's role: it can be neither replayed
//! nor reflected. The node proves first, so that a leader gives an unauthenticated peer nothing to test guesses on.
//!
//! **Invariant:** neither the token nor anything it could be guessed from goes into a message, an error or a log.

use super::settings::{Token, TokenSource};
use enn_common::wire::node::PROOF_BYTES;
use std::{
    fmt,
    fs::File,
    io::{self, Read},
};

const CONTEXT: &str = "enn 2026-11 rendezvous token";

/// Random bytes, new for each connection.
pub(super) type Nonce = [u8; PROOF_BYTES];

/// Hint for nodes whose tokens differ.
pub(super) const SAME_TOKEN: &str = "set the same ENN_TOKEN on all nodes, or copy one token file to every node (mode \
                                     600) and name it by --token-file; nodes without a common home make a token each";

/// Key derived from a token.
#[derive(Clone)]
pub(super) struct Key([u8; blake3::KEY_LEN]);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key")
    }
}

/// Role of the side that proves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Prover {
    Node,
    Leader,
}

impl Key {
    pub(super) fn of(token: &Token) -> Self {
        Self(blake3::derive_key(CONTEXT, &token.secret))
    }

    /// Returns the proof of `prover` for these nonces.
    pub(super) fn proof(&self, prover: Prover, node: &Nonce, leader: &Nonce) -> [u8; PROOF_BYTES] {
        self.hash(prover, node, leader).into()
    }

    /// Whether `proof` is right, in constant time.
    pub(super) fn verifies(&self, proof: &[u8; PROOF_BYTES], prover: Prover, node: &Nonce, leader: &Nonce) -> bool {
        // blake3's comparison of hashes takes the same time wherever they differ.
        self.hash(prover, node, leader) == blake3::Hash::from(*proof)
    }

    fn hash(&self, prover: Prover, node: &Nonce, leader: &Nonce) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(match prover {
            Prover::Node => b"node",
            Prover::Leader => b"host",
        });
        hasher.update(node).update(leader).finalize()
    }
}

/// Fresh nonces from the operating system.
#[derive(Debug)]
pub(super) struct Nonces(File);

impl Nonces {
    pub(super) fn open() -> io::Result<Self> {
        File::open("/dev/urandom").map(Self)
    }

    pub(super) fn next(&mut self) -> io::Result<Nonce> {
        let mut nonce = [0; PROOF_BYTES];
        self.0.read_exact(&mut nonce)?;
        Ok(nonce)
    }
}

impl fmt::Display for TokenSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Variable => write!(f, "ENN_TOKEN"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &[u8]) -> Key {
        Key::of(&Token { secret: secret.to_vec(), from: TokenSource::Variable })
    }

    #[test]
    fn only_the_same_token_side_and_nonces_prove() {
        let mut nonces = Nonces::open().unwrap();
        let node = nonces.next().unwrap();
        let host = nonces.next().unwrap();
        assert_ne!(node, host);
        let proof = key(b"a").proof(Prover::Node, &node, &host);
        assert!(key(b"a").verifies(&proof, Prover::Node, &node, &host));
        assert!(!key(b"b").verifies(&proof, Prover::Node, &node, &host));
        assert!(!key(b"a").verifies(&proof, Prover::Leader, &node, &host), "said back");
        assert!(!key(b"a").verifies(&proof, Prover::Node, &node, &nonces.next().unwrap()), "said again");
        assert!(!key(b"a").verifies(&[0; PROOF_BYTES], Prover::Node, &node, &host));
        assert_eq!(format!("{:?}", key(b"a")), "Key");
    }
}
