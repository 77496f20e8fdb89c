//! Writes `manifests/seed/policies` anew.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/seed/policies");
    std::fs::create_dir_all(&dir)?;
    for (file, text) in tests::policies::files() {
        std::fs::write(dir.join(file), text)?;
    }
    Ok(())
}
