//! Commands inside of a container.

use super::*;

/// Runs commands in a container's environment.
pub(super) struct Inside<'a> {
    pub(super) task: &'a ContainerTask,
    pub(super) surroundings: &'a Surroundings,
}

impl Exec for Inside<'_> {
    async fn exec(&self, command: &[String]) -> Result<(), String> {
        self.try_exec(command).await.map_err(|error| format!("{error:#}"))
    }
}

impl Inside<'_> {
    async fn try_exec(&self, command: &[String]) -> Result<()> {
        let ctx = &self.task.pod.ctx;
        let (program, args) = ctx
            .options
            .images
            .command_line(&self.surroundings.image, command, &[])
            .context("the image has no local program")?;
        let launch = Launch {
            program,
            args: args.iter().map(|a| self.surroundings.mounts.rewrite(a)).collect(),
            env: self.surroundings.env.clone(),
            directory: self.surroundings.directory.clone(),
            log: None,
        };
        let mut child = ctx.processes.start_helper(&ctx.options.bed, &launch)?;
        // A probe that times out is dropped here, and its process with it.
        let _guard = Forget { ctx, pid: child.id() };
        let status = ctx.processes.wait(&mut child).await?;
        if !status.success() {
            bail!("command {command:?} ended with {status}");
        }
        Ok(())
    }
}

pub(super) struct Forget<'a> {
    ctx: &'a crate::kubelet::Ctx,
    pid: Option<u32>,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(pid) = self.pid {
            self.ctx.processes.forget(pid);
        }
    }
}
