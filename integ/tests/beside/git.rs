//! A Git server on loopback with one repository, and its only user. Flux and Argo CD read no repository from a folder.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context as _, ensure};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::task::{JoinHandle, JoinSet};

/// The branch that tools read.
pub(crate) const BRANCH: &str = "main";
/// The repository's name.
const NAME: &str = "platform.git";

/// The server, with a clone that its user works in. Dropping it ends it.
pub(crate) struct Git {
    /// Address of the repository.
    pub(crate) url: String,
    clone: PathBuf,
    task: JoinHandle<()>,
}

impl Drop for Git {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Git {
    /// Starts it with an empty repository below a folder.
    pub(crate) async fn start(folder: &Path) -> anyhow::Result<Self> {
        let root = folder.join("git");
        let clone = folder.join("clone");
        std::fs::create_dir_all(&root)?;
        let bare = root.join(NAME).display().to_string();
        git(folder, &["init", "--quiet", "--bare", "--initial-branch", BRANCH, &bare]).await?;
        git(folder, &["init", "--quiet", "--initial-branch", BRANCH, &clone.display().to_string()]).await?;
        git(&clone, &["remote", "add", "origin", &bare]).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/{NAME}", listener.local_addr()?);
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let root = root.clone();
                connections.spawn(async move {
                    let service = hyper::service::service_fn(move |request| {
                        let root = root.clone();
                        async move { Ok::<_, Infallible>(answer(request, &root).await) }
                    });
                    let http = hyper::server::conn::http1::Builder::new();
                    let _ = http.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Ok(Self { url, clone, task })
    }

    /// Writes files, commits them and pushes the commit.
    pub(crate) async fn push(&self, message: &str, files: &[(&str, &str)]) -> anyhow::Result<()> {
        for (name, content) in files {
            let path = self.clone.join(name);
            std::fs::create_dir_all(path.parent().context("a file in the repository")?)?;
            std::fs::write(path, content)?;
        }
        self.commit(message).await
    }

    /// Removes a file in the same way.
    pub(crate) async fn remove(&self, message: &str, name: &str) -> anyhow::Result<()> {
        std::fs::remove_file(self.clone.join(name))?;
        self.commit(message).await
    }

    async fn commit(&self, message: &str) -> anyhow::Result<()> {
        git(&self.clone, &["add", "--all"]).await?;
        git(&self.clone, &["commit", "--quiet", "--message", message]).await?;
        git(&self.clone, &["push", "--quiet", "origin", BRANCH]).await
    }
}

/// A command of git, without the configuration of this machine's user.
fn command() -> Command {
    let mut command = Command::new("git");
    command
        .env("GIT_CONFIG_GLOBAL", "/dev/null")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .envs([("GIT_AUTHOR_NAME", "a user"), ("GIT_AUTHOR_EMAIL", "user@example.com")])
        .envs([("GIT_COMMITTER_NAME", "a user"), ("GIT_COMMITTER_EMAIL", "user@example.com")])
        .kill_on_drop(true);
    command
}

async fn git(folder: &Path, arguments: &[&str]) -> anyhow::Result<()> {
    let output = command().args(arguments).current_dir(folder).stdin(Stdio::null()).output().await?;
    ensure!(output.status.success(), "git {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

async fn answer(request: Request<Incoming>, root: &Path) -> Response<Full<Bytes>> {
    served(request, root).await.unwrap_or_else(|error| {
        let mut failed = Response::new(Full::new(format!("{error:#}").into()));
        *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        failed
    })
}

/// Answers a request by Git's own program for web servers (CGI).
async fn served(request: Request<Incoming>, root: &Path) -> anyhow::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let header = |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let body = body.collect().await?.to_bytes();
    let mut backend = command();
    backend
        .arg("http-backend")
        .env("GIT_PROJECT_ROOT", root)
        .env("GIT_HTTP_EXPORT_ALL", "1")
        .env("REQUEST_METHOD", parts.method.as_str())
        .env("PATH_INFO", parts.uri.path())
        .env("QUERY_STRING", parts.uri.query().unwrap_or_default())
        .env("CONTENT_TYPE", header("content-type"))
        .env("CONTENT_LENGTH", body.len().to_string())
        .env("HTTP_CONTENT_ENCODING", header("content-encoding"))
        .env("GIT_PROTOCOL", header("git-protocol"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = backend.spawn()?;
    let mut stdin = child.stdin.take().context("a pipe")?;
    let write = async move {
        let _ = stdin.write_all(&body).await;
    };
    let ((), output) = tokio::join!(write, child.wait_with_output());
    let output = output?.stdout;
    let end = output.windows(4).position(|four| four == b"\r\n\r\n").context("git http-backend has sent no headers")?;
    let mut answer = Response::builder();
    for line in std::str::from_utf8(&output[..end])?.lines() {
        let (name, value) = line.split_once(": ").context("a header")?;
        answer = match name {
            "Status" => answer.status(value.split(' ').next().unwrap_or_default()),
            _ => answer.header(name, value),
        };
    }
    Ok(answer.body(Full::new(Bytes::copy_from_slice(&output[end + 4..])))?)
}
