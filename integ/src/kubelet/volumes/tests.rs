use super::*;

fn payload(files: &[(&str, &str)]) -> Payload {
    files.iter().map(|(p, b)| ((*p).to_owned(), (b.as_bytes().to_vec(), 0o640))).collect()
}

#[test]
fn volume_update_replaces_all_files_and_removes_deleted_ones() {
    let dir = tempfile::tempdir().unwrap();
    write_atomically(dir.path(), &payload(&[("a", "1"), ("sub/b", "2")])).unwrap();
    let first = fs::read_link(dir.path().join("..data")).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "1");
    assert_eq!(fs::read_to_string(dir.path().join("sub/b")).unwrap(), "2");
    assert_eq!(fs::metadata(dir.path().join("a")).unwrap().permissions().mode() & 0o777, 0o640);

    write_atomically(dir.path(), &payload(&[("a", "3")])).unwrap();
    assert_eq!(fs::read_to_string(dir.path().join("a")).unwrap(), "3");
    assert!(!dir.path().join("sub").exists());
    assert!(!dir.path().join(first).exists());
}

#[test]
fn missing_volume_key_fails_unless_optional() {
    let items = [KeyToPath { key: "k".into(), path: "p".into(), ..KeyToPath::default() }];
    for (optional, ok) in [(None, false), (Some(false), false), (Some(true), true)] {
        let object = Object { volume: "v", kind: Kind::Secret, name: "s", optional };
        let placed = place(&mut Payload::new(), &object, Some(Data::new()), Some(&items), None);
        assert_eq!(placed.is_ok(), ok);
    }
}
