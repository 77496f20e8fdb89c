//! Writes `manifests/seed/policies` and `manifests/webhook/policy.yaml` anew.

use std::path::Path;

fn main() -> anyhow::Result<()> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/seed/policies");
    std::fs::create_dir_all(&dir)?;
    for (file, text) in tests::policies::files() {
        std::fs::write(dir.join(file), text)?;
    }
    let webhook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/webhook/policy.yaml");
    std::fs::write(webhook, tests::policies::webhook_file())?;
    Ok(())
}
