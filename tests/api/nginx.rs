//! nginx, as Debian ships it, takes the files of deploy/.

use seckill_harness::nginx::{DEPLOY, checked};

/// Each file of deploy/ is one that nginx takes without a warning, alone or included by another one.
#[tokio::test(flavor = "multi_thread")]
async fn nginx_takes_every_file_of_deploy() {
    let names = std::fs::read_dir(DEPLOY).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let texts: Vec<(String, String)> = names
        .filter(|name| name.ends_with(".conf"))
        .map(|name| (name.clone(), std::fs::read_to_string(format!("{DEPLOY}/{name}")).unwrap()))
        .collect();
    let mut checked_files = 0;
    for (file, text) in &texts {
        if !text.contains("http {") {
            let includes = format!("include /etc/nginx/seckill/{file};");
            assert!(texts.iter().any(|(_, other)| other.contains(&includes)), "nothing includes {file}");
            continue;
        }
        // Names that only the network of compose.yaml knows.
        let hosts = ["serve-1:8080", "serve-2:8080", "app:8080"];
        let known = hosts.into_iter().filter(|host| text.contains(host)).map(|host| (host, "127.0.0.1:9"));
        let token = [("gateway-token.conf", "proxy_set_header Authorization \"Bearer x\";\n")];
        let output = checked(file, &known.collect::<Vec<_>>(), &token).await;
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && !said.contains("[warn]"), "{file}: {said}");
        checked_files += 1;
    }
    assert!(checked_files >= 2, "{checked_files} files");
}
