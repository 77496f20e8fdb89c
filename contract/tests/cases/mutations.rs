//! Changes of what was sent, the same in each run: of bytes, of parts of a text, and of the elements of a DER structure
//! with all lengths made right again.

/// SplitMix64: enough to choose by, and the same on every machine.
pub struct Random(u64);

impl Random {
    pub fn new(seed: &str) -> Self {
        // FNV-1a, so that a case that is added changes no other.
        Self(seed.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        }))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit.max(1) as u64) as usize
    }
}

/// One or two changes of the bytes: a bit, a byte, the end, a piece that goes, comes twice or changes places.
pub fn bytes(original: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = original.to_vec();
    for _ in 0..=random.below(2) {
        let length = bytes.len();
        if length == 0 {
            break;
        }
        let at = random.below(length);
        let end = (at + 1 + random.below(40)).min(length);
        match random.below(7) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.below(256) as u8,
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let piece = bytes[at..end].to_vec();
                drop(bytes.splice(at..at, piece));
            }
            5 => {
                let piece: Vec<u8> = bytes.drain(at..end).collect();
                let to = random.below(bytes.len() + 1);
                drop(bytes.splice(to..to, piece));
            }
            _ => bytes.insert(at, b"\0\n\r\x1b .:\"{}[]&*=-\xff"[random.below(17)]),
        }
    }
    bytes
}

/// The same of the parts between separators: one goes, comes twice, or two change places.
pub fn parts(original: &str, separator: char, random: &mut Random) -> String {
    let mut parts: Vec<&str> = original.split(separator).collect();
    let (one, other) = (random.below(parts.len()), random.below(parts.len()));
    match random.below(3) {
        0 => parts.swap(one, other),
        1 => drop(parts.remove(one)),
        _ => parts.insert(other, parts[one]),
    }
    parts.join(&separator.to_string())
}

/// DER as a tree, for changes that leave it DER.
pub struct Node {
    tag: u8,
    content: Vec<u8>,
    children: Option<Vec<Self>>,
}

impl Node {
    /// Nothing where the bytes are not DER.
    pub fn all(mut bytes: &[u8]) -> Option<Vec<Self>> {
        let mut nodes = Vec::new();
        while let [tag, first, rest @ ..] = bytes {
            let more = usize::from(first & 0x7f) * usize::from(first >> 7);
            if more > 3 || (first >> 7 == 1 && more == 0) {
                return None;
            }
            let (length, rest) = rest.split_at_checked(more)?;
            let length = length.iter().fold(0, |sum, &byte| sum << 8 | usize::from(byte));
            let length = if first >> 7 == 1 { length } else { usize::from(*first) };
            let (content, rest) = rest.split_at_checked(length)?;
            let children = (tag & 0x20 != 0).then(|| Self::all(content)).flatten();
            nodes.push(Self {
                tag: *tag,
                content: content.to_vec(),
                children,
            });
            bytes = rest;
        }
        bytes.is_empty().then_some(nodes)
    }

    pub fn der(nodes: &[Self]) -> Vec<u8> {
        let one = |node: &Self| {
            let inner = node.children.as_ref().map(|children| Self::der(children));
            crate::support::tlv(node.tag, inner.as_ref().unwrap_or(&node.content))
        };
        nodes.iter().flat_map(one).collect()
    }

    fn copy(&self) -> Self {
        let children = self.children.as_ref().map(|all| all.iter().map(Self::copy).collect());
        Self {
            tag: self.tag,
            content: self.content.clone(),
            children,
        }
    }
}

/// One change of the elements: one goes, comes twice, changes places, tag or content.
pub fn elements(nodes: &mut Vec<Node>, random: &mut Random) {
    if nodes.is_empty() {
        return;
    }
    let (at, other) = (random.below(nodes.len()), random.below(nodes.len()));
    if let Some(children) = &mut nodes[at].children
        && !children.is_empty()
        && random.below(5) > 0
    {
        return elements(children, random);
    }
    match random.below(5) {
        0 => drop(nodes.remove(at)),
        1 => {
            let copy = nodes[at].copy();
            nodes.insert(other, copy);
        }
        2 => nodes.swap(at, other),
        3 => nodes[at].tag = b"\x02\x03\x04\x05\x06\x0c\x13\x14\x16\x1e\x30\x31\x80\x82\xa0\xa1"[random.below(16)],
        _ => {
            let changed = bytes(&nodes[at].content, random);
            nodes[at].children = None;
            nodes[at].content = changed;
        }
    }
}

/// A request with one change of its elements, by somebody who signs it with a key of his own: the signature is no
/// protection against its maker. Nothing where the request is no DER.
pub fn signed_again(der: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    let request = Node::all(der)?;
    let mut info = vec![request.first()?.children.as_ref()?.first()?.copy()];
    elements(&mut info, random);
    let mut info = Node::der(&info);
    let ours = crate::properties::key().public();
    let spki = crate::support::p256_spki(ours.point());
    let (prefix, point) = spki.split_at(spki.len() - ours.point().len());
    if let Some(at) = info.windows(spki.len()).position(|window| window.starts_with(prefix)) {
        info[at + prefix.len()..at + spki.len()].copy_from_slice(point);
    }
    Some(crate::properties::csr::signed(&info))
}

/// The bytes in the first PEM block, if it is one that a lenient reader takes.
pub fn der_of(request: &[u8]) -> Option<Vec<u8>> {
    x509_parser::pem::parse_x509_pem(request)
        .ok()
        .map(|(_, block)| block.contents)
}
