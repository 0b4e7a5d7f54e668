// Work that waits for the time between two training steps.

/** Returns true if an error comes from a lost graphics context. */
type IsLost = (error: unknown) => boolean;

export class Between {
  private readonly tasks: (() => Promise<void>)[] = [];

  constructor(private readonly isLost: IsLost) {}

  /** True if work waits. */
  get waits(): boolean {
    return this.tasks.length > 0;
  }

  /** Resolves when the work is done. Work interrupted by a lost context waits again, for the restored one. */
  add(work: () => Promise<unknown>): Promise<void> {
    return new Promise((resolve, reject) => {
      const task = async () => {
        try {
          await work();
          resolve();
        } catch (error) {
          if (this.isLost(error)) this.tasks.push(task);
          else reject(error instanceof Error ? error : new Error(String(error)));
          throw error;
        }
      };
      this.tasks.push(task);
    });
  }

  /** Does the waiting work. After an error, the remaining work stays queued. */
  async run(): Promise<void> {
    for (let work = this.tasks.shift(); work; work = this.tasks.shift()) await work();
  }

  /** Does the waiting work after the training has failed; callers that wait receive the errors. */
  async flush(): Promise<void> {
    for (const work of this.tasks.splice(0)) await work().catch(() => {});
  }
}
