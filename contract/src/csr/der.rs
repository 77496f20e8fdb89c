//! The few DER shapes that a certificate request consists of, written and read.
//! The reader takes definite, minimal lengths and one-byte tags only: what is not DER is not read.
//! It borrows, never allocates and cannot panic, because it is given what strangers send.

pub(super) const BIT_STRING: u8 = 0x03;
pub(super) const CONTEXT_0: u8 = 0xa0;
pub(super) const INTEGER: u8 = 0x02;
pub(super) const OID: u8 = 0x06;
pub(super) const SEQUENCE: u8 = 0x30;
pub(super) const SET: u8 = 0x31;
pub(super) const UTF8_STRING: u8 = 0x0c;

/// What is left to read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Der<'a>(pub(super) &'a [u8]);

/// One element: its tag, its content, and all of its bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element<'a> {
    pub(super) tag: u8,
    pub(super) content: &'a [u8],
    pub(super) whole: &'a [u8],
}

impl<'a> Der<'a> {
    pub(super) fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// The next element, or nothing if there is none or it is not DER.
    pub(super) fn next(&mut self) -> Option<Element<'a>> {
        let (&tag, rest) = self.0.split_first()?;
        // Five ones announce a tag of several bytes, which occurs in none of these structures.
        if tag & 0x1f == 0x1f {
            return None;
        }
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81 => match rest.split_first()? {
                (&length @ 0x80.., rest) => (usize::from(length), rest),
                _ => return None,
            },
            0x82 => match rest.split_at_checked(2)? {
                (&[high, low], rest) if high > 0 => (usize::from(high) << 8 | usize::from(low), rest),
                _ => return None,
            },
            0x83 => match rest.split_at_checked(3)? {
                (&[high, middle, low], rest) if high > 0 => (
                    usize::from(high) << 16 | usize::from(middle) << 8 | usize::from(low),
                    rest,
                ),
                _ => return None,
            },
            // 0x80 is BER's indefinite length; longer ones than 16 MiB do not get through an API server.
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        let whole = self.0.get(..self.0.len() - rest.len())?;
        self.0 = rest;
        Some(Element { tag, content, whole })
    }

    /// The content of the next element if it carries this tag.
    pub(super) fn expect(&mut self, tag: u8) -> Option<&'a [u8]> {
        let mut ahead = *self;
        let element = ahead.next().filter(|element| element.tag == tag)?;
        *self = ahead;
        Some(element.content)
    }
}

pub(super) fn element(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut bytes = vec![tag];
    match content.len() {
        short @ 0..=0x7f => bytes.push(short as u8),
        long => {
            let length = long.to_be_bytes();
            let significant = length.iter().position(|&byte| byte != 0).unwrap_or(length.len());
            bytes.push(0x80 | (length.len() - significant) as u8);
            bytes.extend(&length[significant..]);
        }
    }
    bytes.extend(content);
    bytes
}

/// `2.5.4.3` out of its content bytes; whatever is no object identifier is shown as such.
pub(super) fn oid_text(content: &[u8]) -> String {
    let mut arcs = Vec::new();
    let mut arc: u64 = 0;
    for &byte in content.iter().take(32) {
        arc = arc.saturating_mul(128).saturating_add(u64::from(byte & 0x7f));
        if byte & 0x80 == 0 {
            if arcs.is_empty() {
                let first = (arc / 40).min(2);
                arcs.push(first);
                arcs.push(arc - first * 40);
            } else {
                arcs.push(arc);
            }
            arc = 0;
        }
    }
    let text: Vec<String> = arcs.iter().map(u64::to_string).collect();
    if text.is_empty() {
        "no object identifier".to_owned()
    } else {
        text.join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back_at_every_length_form() {
        for length in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000] {
            let content = vec![7; length];
            let bytes = element(SEQUENCE, &[&content]);
            let mut der = Der(&bytes);
            let read = der.next().unwrap();
            assert_eq!(
                (read.tag, read.content, read.whole),
                (SEQUENCE, &content[..], &bytes[..])
            );
            assert!(der.is_empty());
        }
    }

    #[test]
    fn other_spellings_of_a_length_are_not_read() {
        let indefinite = [0x30, 0x80, 0x05, 0x00, 0x00, 0x00];
        let padded = [0x30, 0x81, 0x02, 0x05, 0x00];
        let padded_twice = [0x30, 0x82, 0x00, 0x80];
        let beyond_the_end = [0x30, 0x03, 0x05, 0x00];
        let high_tag = [0x3f, 0x81, 0x01, 0x00];
        for bytes in [
            &indefinite[..],
            &padded,
            &padded_twice,
            &beyond_the_end,
            &high_tag,
            &[0x30],
            &[],
        ] {
            assert!(Der(bytes).next().is_none(), "{bytes:x?}");
        }
    }

    #[test]
    fn object_identifiers_read_as_people_write_them() {
        assert_eq!(oid_text(&[0x55, 0x04, 0x03]), "2.5.4.3");
        assert_eq!(
            oid_text(&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01]),
            "1.2.840.113549.1.1.1"
        );
        assert_eq!(oid_text(&[]), "no object identifier");
        assert_eq!(oid_text(&[0xff; 100]), "no object identifier");
    }
}
