//! Files in a tar archive: the headers, written as ustar and read as every tar writes them.

/// Headers and contents start at multiples of this.
pub(crate) const BLOCK: u64 = 512;
/// The size field has eleven octal digits.
pub(crate) const MAX_SIZE: u64 = 8 << 30;

/// The kind of entry that a header describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// The archive ends here.
    End,
    File {
        path: String,
        size: u64,
    },
    /// A folder, or more about the next entry: no content that an image needs.
    Other {
        size: u64,
    },
}

/// The header of a file. Time and owner are fixed, so that the same content gives the same archive.
pub(crate) fn header(path: &str, size: u64) -> [u8; 512] {
    debug_assert!(path.len() <= 100 && size < MAX_SIZE);
    let mut header = [0_u8; 512];
    let mut put =
        |at: usize, text: &str| header[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, path);
    put(100, "0000644\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, "00000000000\0");
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// Reads a header; `None` if it is none.
pub(crate) fn parse(header: &[u8; 512]) -> Option<Header> {
    if header.iter().all(|byte| *byte == 0) {
        return Some(Header::End);
    }
    let number = |from: usize, to: usize| {
        let text = std::str::from_utf8(&header[from..to]).ok()?;
        u64::from_str_radix(text.trim_matches(['\0', ' ']), 8).ok()
    };
    let blank = |at: usize| if (148..156).contains(&at) { 32 } else { u64::from(header[at]) };
    if number(148, 156)? != (0..512).map(blank).sum::<u64>() {
        return None;
    }
    let text = |from: usize, to: usize| {
        let field = &header[from..to];
        let end = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        std::str::from_utf8(&field[..end]).ok()
    };
    let size = number(124, 136)?;
    if !matches!(header[156], b'0' | 0) {
        return Some(Header::Other { size });
    }
    let (prefix, name) = (text(345, 500)?, text(0, 100)?);
    let path = if prefix.is_empty() { name.to_owned() } else { format!("{prefix}/{name}") };
    Some(Header::File { path: path.trim_start_matches("./").to_owned(), size })
}

/// The length of a content with its padding.
pub(crate) fn padded(size: u64) -> u64 {
    size.div_ceil(BLOCK).saturating_mul(BLOCK)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_is_read_as_it_was_written(path in "[a-z]{1,20}(/[a-z0-9]{1,30}){0,2}", size in 0..MAX_SIZE) {
            prop_assert_eq!(parse(&header(&path, size)), Some(Header::File { path, size }));
        }

        #[test]
        fn a_changed_byte_is_noticed(at in 0_usize..512, to: u8) {
            let good = header("blobs/sha256/abc", 12);
            let mut bad = good;
            bad[at] = to;
            // The last byte of the checksum is filling.
            prop_assert!(bad == good || (148..156).contains(&at) || parse(&bad).is_none());
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 512)) {
            let _ = parse(&bytes.try_into().unwrap());
        }
    }
}
