//! Stores in real folders: packed, found again, damaged, fought over.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use moex_kernels::{WeightFormat, simd::Simd};
use moex_protocol::ExpertId;
use safetensors::SafeTensors;

use super::*;
use moex_model::{Checkpoint, Model};

/// Two layers of eight experts, 64 wide, 32 inside.
pub(crate) fn tiny() -> ModelExperts {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/data/tiny-qwen3-moe");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    ModelExperts::new("tiny", Arc::new(Model::load(&checkpoint).unwrap()))
}

const N_BLOCKS: usize = 16;

/// The store in `folder`, and how many blocks were packed for it.
fn open(folder: &Path, format: WeightFormat) -> (ShardStore, usize) {
    let packing = Packing::To(format.into());
    let packed = AtomicUsize::new(0);
    let count = |_, total| {
        assert_eq!(total, N_BLOCKS);
        packed.fetch_add(1, Relaxed);
    };
    let store = ShardStore::open(folder, &tiny(), packing, &count).unwrap();
    (store, packed.into_inner())
}

fn block(layer: u16, expert: u16) -> Block {
    Block { layer: LayerId(layer), expert: ExpertId(expert) }
}

#[test]
fn a_store_holds_what_the_model_packs_aligned_and_hashed() {
    for format in [WeightFormat::Int4G128, WeightFormat::F16] {
        let folder = tempfile::tempdir().unwrap();
        let (store, packed) = open(folder.path(), format);
        assert_eq!((packed, store.files().len(), store.catalog().len()), (N_BLOCKS, 2, N_BLOCKS));
        for at in 0..N_BLOCKS as u16 {
            let block = block(at / 8, at % 8);
            let bytes = store.block(block).unwrap();
            let shape = store.shape(block.layer).unwrap();
            assert_eq!(bytes, tiny().pack(block, &shape).unwrap());
            assert_eq!(bytes.as_ptr() as usize % 16, 0);
            let source = store.source(block).unwrap();
            assert_eq!(source.blake3, blake3::hash(bytes).to_hex().as_str());
            assert_eq!((source.end - source.start) as usize, store.block_bytes());
            let (path, version) = source.url.split_once("?v=").unwrap();
            let file = store.file(path.strip_prefix(URL_PREFIX).unwrap()).unwrap();
            assert_eq!(file.version, version);
            assert_eq!(&file.bytes[source.start as usize..source.end as usize], bytes);
        }
        assert_eq!(store.block(block(0, 8)), Err(BlockError::Missing(block(0, 8))));
        assert_eq!(store.source(block(2, 0)), None);
    }
}

#[test]
fn a_shard_is_a_safetensors_file() {
    let folder = tempfile::tempdir().unwrap();
    let (store, _) = open(folder.path(), WeightFormat::Int4G128);
    let text = fs::read(folder.path().join("layer-01.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&text).unwrap();
    assert_eq!(file.len(), 8);
    let tensor = file.tensor("layers.1.experts.5").unwrap();
    assert_eq!((tensor.dtype(), tensor.shape()), (safetensors::Dtype::U8, &[store.block_bytes()][..]));
    assert_eq!(tensor.data(), store.block(block(1, 5)).unwrap());
}

#[test]
fn a_store_is_packed_once_for_each_format_and_model() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(open(folder.path(), WeightFormat::Int4G128).1, N_BLOCKS);
    assert_eq!(open(folder.path(), WeightFormat::Int4G128).1, 0);
    assert_eq!(open(folder.path(), WeightFormat::F16).1, N_BLOCKS, "the same folder, another format");
    let names = [WeightFormat::F16, WeightFormat::Bf16]
        .map(|format| ShardStore::default_folder(&tiny(), Packing::To(format.into())));
    assert_ne!(names[0], names[1]);
    let demo = Arc::new(Model::load(&Checkpoint::demo().unwrap()).unwrap());
    assert_ne!(ModelExperts::new("tiny", demo).fingerprint(), tiny().fingerprint());
}

#[test]
fn what_is_damaged_or_half_written_is_packed_again() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 7] = [
        ("a truncated shard", |folder| {
            let path = folder.join("layer-00.safetensors");
            let text = fs::read(&path).unwrap();
            fs::write(path, &text[..text.len() - 1]).unwrap();
        }),
        ("a flipped bit", |folder| {
            let path = folder.join("layer-01.safetensors");
            let mut text = fs::read(&path).unwrap();
            *text.last_mut().unwrap() ^= 1;
            fs::write(path, text).unwrap();
        }),
        ("a missing shard", |folder| fs::remove_file(folder.join("layer-01.safetensors")).unwrap()),
        ("no manifest, as when packing was interrupted", |folder| {
            fs::remove_file(folder.join(manifest::FILE_NAME)).unwrap();
            fs::write(folder.join("layer-01.part"), b"half").unwrap();
        }),
        ("half a manifest", |folder| {
            let path = folder.join(manifest::FILE_NAME);
            let text = fs::read(&path).unwrap();
            fs::write(path, &text[..text.len() / 2]).unwrap();
        }),
        ("a manifest of other weights", |folder| {
            let path = folder.join(manifest::FILE_NAME);
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replace(&tiny().fingerprint(), "0")).unwrap();
        }),
        ("a manifest that points elsewhere", |folder| {
            let path = folder.join(manifest::FILE_NAME);
            let text = fs::read_to_string(&path).unwrap();
            fs::write(path, text.replace("layer-00.safetensors", "../../etc/passwd")).unwrap();
        }),
    ];
    for (what, damage) in damages {
        let folder = tempfile::tempdir().unwrap();
        let (sound, _) = open(folder.path(), WeightFormat::Int4G128);
        let bytes = sound.block(block(1, 7)).unwrap().to_vec();
        damage(folder.path());
        let (store, packed) = open(folder.path(), WeightFormat::Int4G128);
        assert_eq!(packed, N_BLOCKS, "{what}");
        assert_eq!(store.block(block(1, 7)).unwrap(), bytes, "{what}");
    }
}

/// As a disk does it: neither the length nor the time of change says so.
#[test]
fn what_rots_is_not_computed_with_and_packed_again_when_the_store_is_next_opened() {
    let folder = tempfile::tempdir().unwrap();
    let (sound, _) = open(folder.path(), WeightFormat::Int4G128);
    let bytes = sound.block(block(1, 7)).unwrap().to_vec();
    drop(sound);
    let path = folder.path().join("layer-01.safetensors");
    let changed = fs::metadata(&path).unwrap().modified().unwrap();
    let mut text = fs::read(&path).unwrap();
    *text.last_mut().unwrap() ^= 1;
    fs::write(&path, text).unwrap();
    File::options().write(true).open(&path).unwrap().set_modified(changed).unwrap();

    let (rotten, packed) = open(folder.path(), WeightFormat::Int4G128);
    assert_eq!(packed, 0, "nothing shows it");
    assert_eq!(rotten.block(block(1, 7)), Err(BlockError::Damaged { block: block(1, 7), path }));
    assert!(rotten.block(block(1, 6)).is_ok() && rotten.block(block(0, 7)).is_ok());
    assert!(rotten.is_damaged());
    let error = rotten
        .clone()
        .computing_int8(Arc::new(Processor::new(Simd::detect(), 1)), Keep::All)
        .unwrap_err()
        .to_string();
    assert!(error.contains("layer-01.safetensors") && error.contains("restart the hub"), "{error}");

    let (mended, packed) = open(folder.path(), WeightFormat::Int4G128);
    assert_eq!(packed, N_BLOCKS);
    assert!(!mended.is_damaged());
    assert_eq!(mended.block(block(1, 7)).unwrap(), bytes);
}

#[test]
fn a_copied_store_is_checked_by_its_hashes_and_kept() {
    let (folder, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    open(folder.path(), WeightFormat::Int4G128);
    for entry in fs::read_dir(folder.path()).unwrap() {
        let path = entry.unwrap().path();
        fs::write(copy.path().join(path.file_name().unwrap()), fs::read(&path).unwrap()).unwrap();
    }
    assert_eq!(open(copy.path(), WeightFormat::Int4G128).1, 0);
}

#[test]
fn hubs_that_pack_at_once_take_turns() {
    let folder = tempfile::tempdir().unwrap();
    let packed: usize = std::thread::scope(|scope| {
        let hubs: Vec<_> = (0..4).map(|_| scope.spawn(|| open(folder.path(), WeightFormat::F16).1)).collect();
        hubs.into_iter().map(|hub| hub.join().unwrap()).sum()
    });
    assert_eq!(packed, N_BLOCKS, "one packed, the others found it");
}

#[test]
fn a_store_in_use_outlives_its_replacement() {
    let folder = tempfile::tempdir().unwrap();
    let (old, _) = open(folder.path(), WeightFormat::Int4G128);
    let before = old.block(block(0, 0)).unwrap().to_vec();
    open(folder.path(), WeightFormat::F32);
    assert_eq!(old.block(block(0, 0)).unwrap(), before);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, b"").unwrap();
    let error = ShardStore::open(&file, &tiny(), Packing::To(WeightFormat::F16.into()), &|_, _| {})
        .unwrap_err()
        .to_string();
    assert!(error.contains("file") && error.contains("--shards"), "{error}");
}
