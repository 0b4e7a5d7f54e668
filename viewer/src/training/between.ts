// Queues work that must run between two training steps.

/** True if an error comes from a lost graphics context. */
type IsLost = (error: unknown) => boolean;

export class Between {
  private readonly tasks: (() => Promise<void>)[] = [];

  constructor(private readonly isLost: IsLost) {}

  /** True if work is queued. */
  get waits(): boolean {
    return this.tasks.length > 0;
  }

  /**
   * Queues work. Resolves when the work is done, and rejects with its error. Work that a lost context interrupts is
   * queued again.
   */
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

  /** Runs the queued work. After an error, the remaining work stays queued. */
  async run(): Promise<void> {
    for (let work = this.tasks.shift(); work; work = this.tasks.shift()) await work();
  }

  /** Runs the queued work after the training has failed. The callers of `add` receive the errors. */
  async flush(): Promise<void> {
    for (const work of this.tasks.splice(0)) await work().catch(() => {});
  }
}
