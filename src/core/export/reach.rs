//! Who beyond this host may have an export.

use crate::link::Access;
use crate::link::mgmt::key::valid_client;

/// Clients of other hosts to whom an export is shown, and what they may do.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Reach {
    /// None: the export is for this host only.
    Host,
    /// Everybody who has a key of the exporter, with the access of the export.
    #[default]
    Members,
    /// Clients by the names in their keys, each with at most this access. Who has a key without a name is none of them.
    Clients(Vec<(String, Access)>),
}

impl Reach {
    /// One client of [`Reach::Clients`], of the form `NAME`, `NAME:ro` or `NAME:rw`.
    pub fn parse(text: &str) -> Option<(String, Access)> {
        let (name, access) = match text.rsplit_once(':') {
            Some((name, "ro")) => (name, Access::ReadOnly),
            Some((name, "rw")) => (name, Access::ReadWrite),
            Some(_) => return None,
            None => (text, Access::ReadWrite),
        };
        valid_client(name).then(|| (name.to_owned(), access))
    }

    /// What a member may do with an export whose access is `most`; `None`: it does not exist for him.
    pub(super) fn grant(&self, client: Option<&str>, most: Access) -> Option<Access> {
        match self {
            Reach::Host => None,
            Reach::Members => Some(most),
            Reach::Clients(list) => {
                let his = |(name, access): &(String, Access)| (Some(&**name) == client).then_some(*access);
                list.iter().filter_map(his).max().map(|a| a.min(most))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Access::{ReadOnly, ReadWrite};

    #[test]
    fn clients_and_their_access() {
        let of = |name: &str, access| Some((name.to_owned(), access));
        assert_eq!(Reach::parse("node7"), of("node7", ReadWrite));
        assert_eq!(Reach::parse("node7:rw"), of("node7", ReadWrite));
        assert_eq!(Reach::parse("n.o-d_e:ro"), of("n.o-d_e", ReadOnly));
        for bad in ["", ":ro", "a:", "a:x", "a b", "a:ro:ro", ".a", "ä"] {
            assert_eq!(Reach::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn who_may_do_what() {
        let of = |name: &str, access| (name.to_owned(), access);
        let some = Reach::Clients(vec![of("a", ReadWrite), of("b", ReadOnly), of("b", ReadOnly)]);
        for (reach, client, most, want) in [
            (&Reach::Host, Some("a"), ReadWrite, None),
            (&Reach::Members, None, ReadWrite, Some(ReadWrite)),
            (&Reach::Members, Some("x"), ReadOnly, Some(ReadOnly)),
            (&some, Some("a"), ReadWrite, Some(ReadWrite)),
            (&some, Some("a"), ReadOnly, Some(ReadOnly)),
            (&some, Some("b"), ReadWrite, Some(ReadOnly)),
            (&some, Some("c"), ReadWrite, None),
            (&some, None, ReadWrite, None),
        ] {
            assert_eq!(reach.grant(client, most), want, "{reach:?} {client:?}");
        }
    }
}
