// Shows Markdown as elements. HTML and images are shown as source text, so no image is fetched. Only web and mail
// addresses become links.

import { Lexer, type Token, type Tokens } from "marked";
import type { ComponentChildren } from "preact";
import ui from "../../ui/shared.module.css";
import { useCopy } from "../../ui/tools";
import style from "./markdown.module.css";

const SAFE = /^(https?:|mailto:)/i;

/** Shows a text that a model wrote in Markdown. */
export function Markdown({ text }: { text: string }) {
  return <div class={style.markdown}>{blocks(new Lexer({ gfm: true, breaks: true }).lex(text))}</div>;
}

function blocks(tokens: readonly Token[]): ComponentChildren {
  return tokens.map((token, i) => <Block key={i} token={token} />);
}

function Block({ token }: { token: Token }) {
  switch (token.type) {
    case "space":
    case "checkbox": // shown by `List`
      return null;
    case "paragraph":
      return <p>{inline(token.tokens)}</p>;
    case "heading": {
      // a heading of depth 1 becomes h3, because h1 and h2 are headings of the page
      const Tag = `h${Math.min(6, (token as Tokens.Heading).depth + 2)}` as "h3";
      return <Tag>{inline(token.tokens)}</Tag>;
    }
    case "code":
      return <Code {...(token as Tokens.Code)} />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens ?? [])}</blockquote>;
    case "list":
      return <List {...(token as Tokens.List)} />;
    case "table":
      return <Table {...(token as Tokens.Table)} />;
    case "hr":
      return <hr />;
    case "text":
      return token.tokens ? <>{inline(token.tokens)}</> : <>{unescaped((token as Tokens.Text).text)}</>;
    default:
      return <p>{token.raw}</p>;
  }
}

function List({ ordered, start, items }: Tokens.List) {
  const all = items.map((item, i) => (
    <li key={i}>
      {item.task && <input type="checkbox" checked={item.checked ?? false} disabled />}
      {blocks(item.tokens)}
    </li>
  ));
  return ordered ? <ol start={Number(start) || 1}>{all}</ol> : <ul>{all}</ul>;
}

function Table({ header, rows }: Tokens.Table) {
  return (
    <div class={style.table} tabIndex={0}>
      <table>
        <thead>
          <tr>
            {header.map((cell, i) => (
              <th key={i} style={{ textAlign: cell.align }}>
                {inline(cell.tokens)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row, i) => (
            <tr key={i}>
              {row.map((cell, j) => (
                <td key={j} style={{ textAlign: cell.align }}>
                  {inline(cell.tokens)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** Shows a block of code, with a button that copies the code. */
function Code({ text, lang }: Tokens.Code) {
  const { copied, copy } = useCopy(text);
  return (
    <figure class={style.code}>
      <figcaption>
        <span>{lang || "code"}</span>
        {copy && (
          <button class={ui.quiet} onClick={copy}>
            {copied ? "Copied" : "Copy"}
          </button>
        )}
      </figcaption>
      <pre tabIndex={0}>
        <code>{text}</code>
      </pre>
    </figure>
  );
}

function inline(tokens: readonly Token[] | undefined): ComponentChildren {
  return tokens?.map((token, i) => <Inline key={i} token={token} />);
}

function Inline({ token }: { token: Token }) {
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens)}</strong>;
    case "em":
      return <em>{inline(token.tokens)}</em>;
    case "del":
      return <del>{inline(token.tokens)}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "checkbox":
      return null; // shown by `List`
    case "br":
      return <br />;
    case "link": {
      const { href } = token as Tokens.Link;
      if (!SAFE.test(href)) return <>{inline(token.tokens)}</>;
      return (
        <a href={href} target="_blank" rel="noreferrer noopener" title={href}>
          {inline(token.tokens)}
        </a>
      );
    }
    case "escape":
    case "text":
      return token.type === "text" && token.tokens ? (
        <>{inline(token.tokens)}</>
      ) : (
        <>{unescaped((token as Tokens.Text).text)}</>
      );
    default:
      return <>{token.raw}</>; // images and HTML, as source text
  }
}

/** Replaces HTML entities that a model may write, such as `&lt;`, with the characters that they stand for. */
function unescaped(text: string): string {
  const known: Record<string, string> = { "&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&#39;": "'" };
  return text.replace(/&(lt|gt|amp|quot|#39);/g, (entity) => known[entity]!);
}
